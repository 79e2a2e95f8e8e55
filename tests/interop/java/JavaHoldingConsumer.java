import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * Pulls {@code count} messages of a topic into the push consumer's cache, its listener never
 * returning, says so with the heap they leave in use, and ends when standard input does.
 *
 * <p>Arguments: namesrv topic group count.
 */
public final class JavaHoldingConsumer {
    private JavaHoldingConsumer() {
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        int wanted = peer.number("count", 1);
        CountDownLatch never = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(peer.text("group"));
        consumer.setNamesrvAddr(peer.text("namesrv"));
        consumer.setInstanceName("peer-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullThresholdForQueue(Math.min(wanted, 65535));
        consumer.setConsumeConcurrentlyMaxSpan(Math.min(wanted, 65535));
        consumer.subscribe(peer.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                never.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (cached(consumer) < wanted) {
            Thread.sleep(20);
        }
        Peer.say("event", "held", "count", cached(consumer));
        System.gc();
        long heap = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
        Peer.say("event", "heap", "heap_mib", heap / 1048576.0);
        Peer.awaitEndOfInput();
        System.exit(0);
    }

    private static int cached(DefaultMQPushConsumer consumer) {
        int sum = 0;
        var info = consumer.getDefaultMQPushConsumerImpl().consumerRunningInfo();
        for (var queue : info.getMqTable().values()) {
            sum += queue.getCachedMsgCount();
        }
        return sum;
    }
}
