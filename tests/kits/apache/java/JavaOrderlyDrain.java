import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * Drains {@code count} messages of a topic with the Java push consumer and an orderly listener that
 * does nothing, for each line of standard input with a consumer of its own; give each a group.
 *
 * <p>Arguments: namesrv topic group count, and: batch timeout.
 */
public final class JavaOrderlyDrain {
    private JavaOrderlyDrain() {
    }

    public static void main(String[] args) throws Exception {
        new Peer(args).eachRound(JavaOrderlyDrain::round);
        System.exit(0);
    }

    private static Peer.Measured round(Peer peer) throws Exception {
        int wanted = peer.number("count", 1);
        AtomicLong consumed = new AtomicLong();
        AtomicLong firstNanos = new AtomicLong();
        AtomicLong lastNanos = new AtomicLong();
        CountDownLatch complete = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(peer.text("group"));
        peer.configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(peer.number("batch", 1));
        consumer.subscribe(peer.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            firstNanos.compareAndSet(0, System.nanoTime());
            long after = consumed.addAndGet(messages.size());
            if (after >= wanted && after - messages.size() < wanted) {
                lastNanos.set(System.nanoTime());
                complete.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        if (!complete.await(peer.number("timeout", 120), TimeUnit.SECONDS)) {
            throw new IllegalStateException("consumed " + consumed.get() + " of " + wanted);
        }
        consumer.shutdown();
        return new Peer.Measured(wanted, lastNanos.get() - firstNanos.get());
    }
}
