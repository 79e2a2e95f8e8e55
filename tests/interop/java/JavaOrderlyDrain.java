import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * Drains {@code count} messages of a topic with the Java push consumer and an orderly listener that
 * does nothing, prints the rate, and shuts down when standard input ends.
 *
 * <p>Arguments: namesrv topic group count, and: batch.
 */
public final class JavaOrderlyDrain {
    private JavaOrderlyDrain() {
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        int wanted = peer.number("count", 1);
        AtomicLong consumed = new AtomicLong();
        AtomicLong firstNanos = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(peer.text("group"));
        consumer.setNamesrvAddr(peer.text("namesrv"));
        consumer.setInstanceName("peer-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(peer.number("batch", 1));
        consumer.subscribe(peer.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            firstNanos.compareAndSet(0, System.nanoTime());
            long after = consumed.addAndGet(messages.size());
            if (after >= wanted && after - messages.size() < wanted) {
                long nanos = System.nanoTime() - firstNanos.get();
                Peer.say("event", "done", "count", after, "seconds", nanos / 1e9,
                    "rate", Peer.rate(after, nanos));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Peer.say("event", "ready");
        Peer.awaitEndOfInput();
        consumer.shutdown();
        System.exit(0);
    }
}
