import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Drains {@code count} messages of a topic with the Java lite pull consumer and prints the rate.
 *
 * <p>Arguments: namesrv topic group count, and: expression pullbatch track out.
 */
public final class JavaLitePullConsumer {
    private JavaLitePullConsumer() {
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(peer.text("group"));
        consumer.setNamesrvAddr(peer.text("namesrv"));
        consumer.setInstanceName("peer-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(peer.number("pullbatch", 32));
        consumer.subscribe(peer.text("topic"), peer.text("expression", "*"));
        consumer.start();
        Peer.say("event", "ready");
        try (Peer.Rows rows = new Peer.Rows(peer.text("out", null))) {
            drain(consumer, peer, rows);
        }
        consumer.shutdown();
        System.exit(0);
    }

    private static void drain(DefaultLitePullConsumer consumer, Peer peer, Peer.Rows rows) {
        int wanted = peer.number("count", 1);
        boolean track = peer.flag("track", true);
        Set<String> unique = new HashSet<>();
        long consumed = 0;
        long begin = 0;
        while (consumed < wanted) {
            List<MessageExt> messages = consumer.poll(1000);
            begin = begin == 0 && !messages.isEmpty() ? System.nanoTime() : begin;
            rows.addReceived(messages, "OK");
            if (!track) {
                consumed += messages.size();
                continue;
            }
            for (MessageExt message : messages) {
                consumed += unique.add(message.getMsgId()) ? 1 : 0;
            }
        }
        consumer.commitSync();
        long nanos = System.nanoTime() - begin;
        Peer.say("event", "done", "count", consumed, "seconds", nanos / 1e9,
            "rate", Peer.rate(consumed, nanos));
    }
}
