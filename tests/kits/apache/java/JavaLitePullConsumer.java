import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Drains {@code count} messages of a topic with the Java lite pull consumer and prints the rate.
 *
 * <p>Arguments: namesrv topic group count, and: expression pullbatch track out. With rounds=true
 * each line of standard input is a consumer of its own; give each a group of its own.
 */
public final class JavaLitePullConsumer {
    private JavaLitePullConsumer() {
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        if (peer.rounds()) {
            peer.eachRound(JavaLitePullConsumer::round);
            System.exit(0);
        }
        DefaultLitePullConsumer consumer = started(peer);
        Peer.say("event", "ready");
        try (Peer.Rows rows = new Peer.Rows(peer.text("out", null))) {
            Peer.Measured done = drain(consumer, peer, rows);
            Peer.say("event", "done", "count", done.count(), "seconds", done.nanos() / 1e9,
                "rate", Peer.rate(done.count(), done.nanos()));
        }
        consumer.shutdown();
        System.exit(0);
    }

    private static Peer.Measured round(Peer peer) throws Exception {
        DefaultLitePullConsumer consumer = started(peer);
        Peer.Measured done = drain(consumer, peer, new Peer.Rows(null));
        consumer.shutdown();
        return done;
    }

    private static DefaultLitePullConsumer started(Peer peer) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(peer.text("group"));
        peer.configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(peer.number("pullbatch", 32));
        consumer.subscribe(peer.text("topic"), peer.text("expression", "*"));
        consumer.start();
        return consumer;
    }

    private static Peer.Measured drain(
        DefaultLitePullConsumer consumer, Peer peer, Peer.Rows rows) {
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
        long nanos = System.nanoTime() - begin;
        consumer.commitSync();
        return new Peer.Measured(consumed, nanos);
    }
}
