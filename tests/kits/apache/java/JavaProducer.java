import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends {@code count} messages with the Java client and prints what came of it.
 *
 * <p>Arguments: namesrv topic group count, and: mode=async|sync|oneway|batch size inflight threads
 * batch tags=A,B prefix compress delay warmup out timeout trace tracetopic traceparent autobatch
 * batchdelay producers (a connection each, for mode=sync). With rounds=true it sends {@code count}
 * messages for each line of standard input.
 */
public final class JavaProducer {
    private Peer peer;
    private final DefaultMQProducer producer;
    private final List<DefaultMQProducer> others = new ArrayList<>();
    private String topic;
    private int size;
    private final String[] tags;
    private final int delay;
    private final AtomicLong acknowledged = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicReference<Throwable> firstFailure = new AtomicReference<>();

    private JavaProducer(Peer peer) throws Exception {
        this.peer = peer;
        topic = peer.text("topic");
        size = peer.number("size", 1024);
        tags = peer.text("tags", "").isEmpty() ? new String[0] : peer.text("tags").split(",");
        delay = peer.number("delay", 0);
        producer = new DefaultMQProducer(
            peer.text("group"), peer.flag("trace", false), peer.text("tracetopic", null));
        peer.configure(producer);
        producer.setSendMsgTimeout(peer.number("timeout", 10000));
        producer.setCompressMsgBodyOverHowmuch(peer.number("compress", 4096));
        if (peer.flag("autobatch", false)) {
            gatherIntoBatches();
        }
    }

    /** The 5.x client alone has it, and these programs are compiled for 4.9 too. */
    private void gatherIntoBatches() throws Exception {
        producer.getClass().getMethod("setAutoBatch", boolean.class).invoke(producer, true);
        int delay = peer.number("batchdelay", 0);
        if (delay > 0) {
            producer.getClass().getMethod("batchMaxDelayMs", int.class).invoke(producer, delay);
        }
    }

    public static void main(String[] args) throws Exception {
        JavaProducer program = new JavaProducer(new Peer(args));
        System.exit(program.run() ? 0 : 1);
    }

    private boolean run() throws Exception {
        producer.start();
        if (peer.rounds()) {
            peer.eachRound(this::round);
            producer.shutdown();
            others.forEach(DefaultMQProducer::shutdown);
            return true;
        }
        int warmup = peer.number("warmup", 0);
        if (warmup > 0) {
            send("warmup", warmup, new Peer.Rows(null));
        }
        int count = peer.number("count", 1);
        acknowledged.set(0);
        long nanos;
        try (Peer.Rows rows = new Peer.Rows(peer.text("out", null))) {
            nanos = send(peer.text("prefix", "m"), count, rows);
        }
        Throwable failure = firstFailure.get();
        Peer.say("event", "done", "count", acknowledged.get(), "failed", failed.get(),
            "seconds", nanos / 1e9, "rate", Peer.rate(acknowledged.get(), nanos),
            "failure", failure == null ? "" : failure.toString());
        if (peer.flag("trace", false)) {
            Peer.awaitEndOfInput(); // its shutdown gives traces that are not sent half a second
        }
        producer.shutdown();
        others.forEach(DefaultMQProducer::shutdown);
        return failed.get() == 0;
    }

    private Peer.Measured round(Peer its) throws Exception {
        peer = its;
        topic = its.text("topic");
        size = its.number("size", 1024);
        acknowledged.set(0);
        long nanos = send(its.text("prefix", "m"), its.number("count", 1), new Peer.Rows(null));
        if (failed.get() > 0) {
            throw new IllegalStateException("sends failed", firstFailure.get());
        }
        return new Peer.Measured(acknowledged.get(), nanos);
    }

    private long send(String prefix, int count, Peer.Rows rows) throws Exception {
        long begin = System.nanoTime();
        switch (peer.text("mode", "async")) {
            case "async" -> sendAsync(prefix, count, rows);
            case "sync" -> sendSync(prefix, count, rows);
            case "batch" -> sendBatches(prefix, count, rows);
            case "oneway" -> sendOneway(prefix, count);
            default -> throw new IllegalArgumentException("mode=async|sync|oneway|batch");
        }
        return System.nanoTime() - begin;
    }

    private Message message(String prefix, int index) {
        String tag = tags.length == 0 ? "" : tags[index % tags.length];
        Message message =
            new Message(topic, tag, prefix + "-" + index, Peer.body(prefix, index, size));
        message.putUserProperty("index", String.valueOf(index));
        if (delay > 0) {
            message.setDelayTimeLevel(delay);
        }
        String context = peer.text("traceparent", null);
        if (context != null) {
            message.putUserProperty("traceparent", context);
        }
        return message;
    }

    private void sendAsync(String prefix, int count, Peer.Rows rows) throws Exception {
        int inflight = peer.number("inflight", 64);
        Semaphore room = new Semaphore(inflight);
        for (int i = 0; i < count; i++) {
            Message message = message(prefix, i);
            room.acquire();
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    note(message, result, rows);
                    room.release();
                }

                @Override
                public void onException(Throwable e) {
                    fail(e);
                    room.release();
                }
            });
        }
        room.tryAcquire(inflight, 60, TimeUnit.SECONDS);
    }

    /** A producer of its own for each of some threads: clients with a connection each. */
    private DefaultMQProducer producer(int number) throws Exception {
        while (others.size() < number) {
            DefaultMQProducer other = new DefaultMQProducer(peer.text("group"));
            peer.configure(other, "peer-" + ProcessHandle.current().pid() + "-" + others.size());
            other.setSendMsgTimeout(peer.number("timeout", 10000));
            other.start();
            others.add(other);
        }
        return number == 0 ? producer : others.get(number - 1);
    }

    private void sendSync(String prefix, int count, Peer.Rows rows) throws Exception {
        AtomicInteger next = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < peer.number("threads", 1); t++) {
            DefaultMQProducer producer = producer(t % peer.number("producers", 1));
            Thread thread = new Thread(() -> {
                for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
                    Message message = message(prefix, i);
                    try {
                        note(message, producer.send(message), rows);
                    } catch (Exception e) {
                        fail(e);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void sendBatches(String prefix, int count, Peer.Rows rows) throws Exception {
        int batch = peer.number("batch", 32);
        for (int from = 0; from < count; from += batch) {
            List<Message> messages = new ArrayList<>();
            for (int i = from; i < Math.min(count, from + batch); i++) {
                messages.add(message(prefix, i));
            }
            try {
                SendResult result = producer.send(messages);
                check(result);
                acknowledged.addAndGet(messages.size());
                String[] ids = result.getMsgId().split(",");
                for (int i = 0; i < messages.size(); i++) {
                    rows.add(ids[i], result.getMessageQueue().getQueueId(),
                        result.getQueueOffset() + i, messages.get(i).getKeys(),
                        messages.get(i).getTags(), Peer.digest(messages.get(i).getBody()));
                }
            } catch (Exception e) {
                fail(e);
            }
        }
    }

    private void sendOneway(String prefix, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.sendOneway(message(prefix, i));
            acknowledged.incrementAndGet();
        }
    }

    private void note(Message message, SendResult result, Peer.Rows rows) {
        check(result);
        acknowledged.incrementAndGet();
        if (rows.wanted()) {
            rows.add(result.getMsgId(), result.getMessageQueue().getQueueId(),
                result.getQueueOffset(), message.getKeys(), message.getTags(),
                Peer.digest(message.getBody()));
        }
    }

    private void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            fail(new IllegalStateException("send status " + result.getSendStatus()));
        }
    }

    private void fail(Throwable e) {
        failed.incrementAndGet();
        firstFailure.compareAndSet(null, e);
    }
}
