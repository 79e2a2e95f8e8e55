import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes with the Java push consumer until {@code count} messages were consumed, says so, and
 * shuts down when standard input ends.
 *
 * <p>Arguments: namesrv topic group, and: count expression from=first|last batch pullbatch threads
 * failmodulo failtimes maxreconsume track out sql trace tracetopic
 * instance broadcast. With rounds=true each line of standard input is a consumer of its own that
 * consumes {@code count} messages; give each a group of its own. With failmodulo=M every message whose {@code index}
 * property is a multiple of M fails until it was reconsumed failtimes times.
 */
public final class JavaPushConsumer implements MessageListenerConcurrently {
    private final Peer peer;
    private final int wanted;
    private final int failModulo;
    private final int failTimes;
    private final boolean track;
    private final Peer.Rows rows;
    private final Set<String> unique = ConcurrentHashMap.newKeySet();
    private final AtomicLong consumed = new AtomicLong();
    private final AtomicLong failures = new AtomicLong();
    private final AtomicLong firstNanos = new AtomicLong();
    private final CountDownLatch complete = new CountDownLatch(1);
    private volatile long tookNanos;

    private JavaPushConsumer(Peer peer) throws Exception {
        this.peer = peer;
        wanted = peer.number("count", Integer.MAX_VALUE);
        failModulo = peer.number("failmodulo", 0);
        failTimes = peer.number("failtimes", 1);
        track = peer.flag("track", true);
        rows = new Peer.Rows(peer.text("out", null));
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        if (peer.rounds()) {
            peer.eachRound(its -> new JavaPushConsumer(its).round());
        } else {
            new JavaPushConsumer(peer).run();
        }
        System.exit(0);
    }

    private void run() throws Exception {
        DefaultMQPushConsumer consumer = started();
        Peer.say("event", "ready");
        Peer.awaitEndOfInput();
        consumer.shutdown();
        rows.close();
        Peer.say("event", "closed", "count", consumed.get(), "unique", unique.size(),
            "failures", failures.get());
    }

    private Peer.Measured round() throws Exception {
        DefaultMQPushConsumer consumer = started();
        if (!complete.await(peer.number("timeout", 120), TimeUnit.SECONDS)) {
            throw new IllegalStateException("consumed " + consumed.get() + " of " + wanted);
        }
        consumer.shutdown();
        return new Peer.Measured(wanted, tookNanos);
    }

    private DefaultMQPushConsumer started() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            peer.text("group"), peer.flag("trace", false), peer.text("tracetopic", null));
        peer.configure(consumer, peer.text("instance", "peer-" + ProcessHandle.current().pid()));
        if (peer.flag("broadcast", false)) {
            // The enum is in another package in 5.x.
            consumer.setMessageModel(Enum.valueOf(
                consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
        }
        // The 5.5 client now and then divides queues before it knows their route; it looks again
        // after this long (and divides again after rocketmq.client.rebalance.waitInterval).
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(peer.text("from", "first").equals("last")
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(peer.number("batch", 1));
        consumer.setPullBatchSize(peer.number("pullbatch", 32));
        int threads = peer.number("threads", 20);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        // Without it the offset of a message that is just being finished is not committed.
        consumer.setAwaitTerminationMillisWhenShutdown(10000);
        consumer.setMaxReconsumeTimes(peer.number("maxreconsume", -1));
        String sql = peer.text("sql", "");
        consumer.subscribe(peer.text("topic"), sql.isEmpty()
            ? MessageSelector.byTag(peer.text("expression", "*")) : MessageSelector.bySql(sql));
        consumer.registerMessageListener(this);
        consumer.start();
        return consumer;
    }

    @Override
    public ConsumeConcurrentlyStatus consumeMessage(
        List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        firstNanos.compareAndSet(0, System.nanoTime());
        if (failModulo > 0 && mustFail(messages)) {
            failures.addAndGet(messages.size());
            rows.addReceived(messages, "FAIL");
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
        rows.addReceived(messages, "OK");
        count(messages);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private boolean mustFail(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            int index = Integer.parseInt(message.getUserProperty("index"));
            if (index % failModulo == 0 && message.getReconsumeTimes() < failTimes) {
                return true;
            }
        }
        return false;
    }

    private void count(List<MessageExt> messages) {
        int fresh = messages.size();
        if (track) {
            fresh = 0;
            for (MessageExt message : messages) {
                fresh += unique.add(message.getMsgId()) ? 1 : 0;
            }
        }
        long after = consumed.addAndGet(fresh);
        if (after >= wanted && after - fresh < wanted) {
            tookNanos = System.nanoTime() - firstNanos.get();
            if (peer.rounds()) {
                complete.countDown();
                return;
            }
            Peer.say("event", "done", "count", after, "seconds", tookNanos / 1e9,
                "rate", Peer.rate(after, tookNanos));
        }
    }
}
