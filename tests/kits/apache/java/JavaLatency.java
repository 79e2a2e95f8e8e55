import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends at a steady rate and consumes in the same process; prints how long messages took from
 * before the send to the listener.
 *
 * <p>Arguments: namesrv topic group count rate warmup, and: size. With rounds=true it paces
 * {@code count} messages for each line of standard input. Each body begins with a number
 * and the time it was sent; numbers below zero only find out that the consumer is there.
 */
public final class JavaLatency implements MessageListenerConcurrently {
    private final Peer peer;
    private final AtomicInteger seen = new AtomicInteger();
    private final CountDownLatch awake = new CountDownLatch(1);
    /** Numbers below this only warm up, or belong to an earlier round. */
    private volatile int warmup;
    private volatile long[] nanos;
    private volatile CountDownLatch complete;

    private JavaLatency(Peer peer) {
        this.peer = peer;
    }

    public static void main(String[] args) throws Exception {
        System.exit(new JavaLatency(new Peer(args)).run() ? 0 : 1);
    }

    private boolean run() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(peer.text("group"));
        peer.configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(peer.text("topic"), "*");
        consumer.registerMessageListener(this);
        DefaultMQProducer producer = new DefaultMQProducer(peer.text("group") + "-sender");
        peer.configure(producer);
        consumer.start();
        producer.start();
        for (int i = 0; i < 600 && awake.getCount() > 0; i++) {
            send(producer, -1);
            awake.await(100, TimeUnit.MILLISECONDS);
        }
        // All queues are taken before the clock counts, and none is behind.
        Thread.sleep(1000);
        boolean whole = true;
        if (peer.rounds()) {
            peer.eachRound(its -> round(producer, its));
        } else {
            whole = measure(producer, peer);
            Peer.say("event", "done", "count", seen.get(), "whole", whole, "p50_us", at(0.5),
                "p99_us", at(0.99), "max_us", at(1.0));
        }
        producer.shutdown();
        consumer.shutdown();
        return whole;
    }

    private Peer.Measured round(DefaultMQProducer producer, Peer its) throws Exception {
        long begin = System.nanoTime();
        if (!measure(producer, its)) {
            throw new IllegalStateException("only " + seen.get() + " came within 30 s");
        }
        return new Peer.Measured(nanos.length, System.nanoTime() - begin, "p50_us", at(0.5),
            "p99_us", at(0.99), "max_us", at(1.0));
    }

    private boolean measure(DefaultMQProducer producer, Peer its) throws Exception {
        warmup = its.number("warmup", 0);
        seen.set(0);
        nanos = new long[its.number("count", 1)];
        complete = new CountDownLatch(1);
        pace(producer);
        boolean whole = complete.await(30, TimeUnit.SECONDS);
        Arrays.sort(nanos);
        return whole;
    }

    private void pace(DefaultMQProducer producer) throws Exception {
        long period = TimeUnit.SECONDS.toNanos(1) / peer.number("rate", 500);
        long next = System.nanoTime();
        for (int i = 0; i < warmup + nanos.length; i++) {
            next += period;
            for (long left = next - System.nanoTime(); left > 0; left = next - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            send(producer, i);
        }
    }

    private void send(DefaultMQProducer producer, int number) throws Exception {
        ByteBuffer body = ByteBuffer.allocate(peer.number("size", 1024));
        Message message = new Message(peer.text("topic"), body.array());
        body.putInt(number).putLong(System.nanoTime());
        producer.send(message);
    }

    private double at(double share) {
        int index = Math.min(nanos.length - 1, (int) (share * nanos.length));
        return nanos[index] / 1000.0;
    }

    @Override
    public ConsumeConcurrentlyStatus consumeMessage(
        List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        long now = System.nanoTime();
        for (MessageExt message : messages) {
            ByteBuffer body = ByteBuffer.wrap(message.getBody());
            int number = body.getInt() - warmup;
            awake.countDown();
            if (number >= 0) {
                nanos[number] = now - body.getLong();
                if (seen.incrementAndGet() == nanos.length) {
                    complete.countDown();
                }
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }
}
