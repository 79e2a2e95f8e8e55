import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Divides queues by every strategy and writes the shares down, in the order they come.
 *
 * <p>Arguments: out, and: queues members (the largest numbers tried). A row is strategy, queues per
 * room, members, member, and the share as {@code broker:queue} joined by commas.
 */
public final class JavaAllocate {
    private JavaAllocate() {
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        Peer.Rows rows = new Peer.Rows(peer.text("out"));
        for (AllocateMessageQueueStrategy strategy : strategies()) {
            for (int queues = 1; queues <= peer.number("queues", 12); queues++) {
                for (int members = 1; members <= peer.number("members", 6); members++) {
                    divide(rows, strategy, queues, members);
                }
            }
        }
        rows.close();
        Peer.say("event", "done");
        System.exit(0);
    }

    private static List<AllocateMessageQueueStrategy> strategies() {
        AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
        rooms.setConsumeridcs(new java.util.HashSet<>(List.of("r1", "r3")));
        AllocateMachineRoomNearby.MachineRoomResolver resolver =
            new AllocateMachineRoomNearby.MachineRoomResolver() {
                @Override
                public String brokerDeployIn(MessageQueue queue) {
                    return queue.getBrokerName().split("@")[0];
                }

                @Override
                public String consumerDeployIn(String clientId) {
                    return clientId.split("@")[0];
                }
            };
        return List.of(
            new AllocateMessageQueueAveragely(),
            new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash(),
            rooms,
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver));
    }

    private static void divide(
        Peer.Rows rows, AllocateMessageQueueStrategy strategy, int queues, int members) {
        List<MessageQueue> all = new ArrayList<>();
        for (String room : List.of("r1", "r2", "r3")) {
            for (int i = 0; i < queues; i++) {
                all.add(new MessageQueue("T", room + "@b", i));
            }
        }
        Collections.sort(all);
        List<String> ids = new ArrayList<>();
        for (int i = 0; i < members; i++) {
            ids.add("r" + (1 + i % 2) + "@c" + i);
        }
        Collections.sort(ids);
        for (String id : ids) {
            List<String> share = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("g", id, all, ids)) {
                share.add(queue.getBrokerName() + ":" + queue.getQueueId());
            }
            rows.add(strategy.getName(), queues, members, id, String.join(",", share));
        }
    }
}
