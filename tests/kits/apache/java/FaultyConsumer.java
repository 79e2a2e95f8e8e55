import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Push consumers that each have one fault, many of them in one JVM, until standard input ends.
 *
 * <p>Arguments: namesrv prefix modes, the modes joined by commas. The group and the topic of a mode
 * are its name behind the prefix. Says {@code ready} when all are started.
 */
public final class FaultyConsumer {
    private static final CountDownLatch NEVER = new CountDownLatch(1);

    private final Peer peer;
    private int instances;

    private FaultyConsumer(Peer peer) {
        this.peer = peer;
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        FaultyConsumer all = new FaultyConsumer(peer);
        for (String mode : peer.text("modes").split(",")) {
            all.plant(mode);
        }
        Peer.say("event", "ready");
        Peer.awaitEndOfInput();
        // Listeners that never return would keep an orderly shutdown waiting.
        Runtime.getRuntime().halt(0);
    }

    private void plant(String mode) throws Exception {
        switch (mode) {
            case "healthy", "readonly" -> start(consumer(mode, "*", 20, FaultyConsumer::done));
            case "pinned" -> start(consumer(mode, "*", 8, FaultyConsumer::waitForAFriend));
            case "poison" -> start(consumer(mode, "*", 20, FaultyConsumer::refusePoison));
            case "starved" -> start(consumer(mode, "*", 4, FaultyConsumer::waitForAll));
            case "slow" -> start(consumer(mode, "*", 2, FaultyConsumer::workSlowly));
            case "mismatch" -> {
                start(consumer(mode, "paid", 20, FaultyConsumer::done));
                start(consumer(mode, "refused", 20, FaultyConsumer::done));
            }
            case "unowned" -> {
                DefaultMQPushConsumer consumer = consumer(mode, "*", 20, FaultyConsumer::done);
                consumer.setAllocateMessageQueueStrategy(new LeavesTheFirstOut());
                start(consumer);
            }
            case "idle" -> {
                for (int i = 0; i < 3; i++) {
                    start(consumer(mode, "*", 2, FaultyConsumer::workSlowly));
                }
            }
            case "expired" -> Peer.say("event", "absent", "mode", mode);
            case "paused" -> {
                // Once it has consumed what was there: before that it would get no queue.
                CountDownLatch left = new CountDownLatch(peer.number("paused", 40));
                DefaultMQPushConsumer consumer = consumer(mode, "*", 20, (messages, context) -> {
                    messages.forEach(message -> left.countDown());
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                consumer.start();
                left.await(60, TimeUnit.SECONDS);
                consumer.suspend();
            }
            case "locked" -> {
                DefaultMQPushConsumer consumer = consumer(mode, "*", 20, null);
                consumer.registerMessageListener((MessageListenerOrderly)
                    (messages, context) -> ConsumeOrderlyStatus.SUCCESS);
                start(consumer);
            }
            case "filtered" -> start(consumer(mode, "Paid", 20, FaultyConsumer::done));
            case "letters" -> {
                DefaultMQPushConsumer consumer = consumer(mode, "*", 20, FaultyConsumer::refuseAll);
                consumer.setMaxReconsumeTimes(0);
                start(consumer);
            }
            default -> throw new IllegalArgumentException("no such mode: " + mode);
        }
    }

    private DefaultMQPushConsumer consumer(
        String mode, String expression, int threads, MessageListenerConcurrently listener)
        throws Exception {
        String name = peer.text("prefix") + "-" + mode;
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name);
        peer.configure(consumer, mode + "-" + instances++);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setMaxReconsumeTimes(1000);
        consumer.subscribe(name, expression);
        if (listener != null) {
            consumer.registerMessageListener(listener);
        }
        return consumer;
    }

    private static void start(DefaultMQPushConsumer consumer) throws Exception {
        consumer.start();
    }

    private static ConsumeConcurrentlyStatus done(List<MessageExt> messages, Object context) {
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static ConsumeConcurrentlyStatus waitForAFriend(
        List<MessageExt> messages, Object context) {
        return has(messages, "pin-me") ? waitForAll(messages, context) : done(messages, context);
    }

    private static ConsumeConcurrentlyStatus refusePoison(
        List<MessageExt> messages, Object context) {
        if (has(messages, "poison-me")) {
            throw new IllegalStateException("this one is beyond me");
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static ConsumeConcurrentlyStatus refuseAll(List<MessageExt> messages, Object context) {
        throw new IllegalStateException("these are beyond me");
    }

    private static ConsumeConcurrentlyStatus waitForAll(List<MessageExt> messages, Object context) {
        try {
            NEVER.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static ConsumeConcurrentlyStatus workSlowly(List<MessageExt> messages, Object context) {
        try {
            TimeUnit.MILLISECONDS.sleep(500);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static boolean has(List<MessageExt> messages, String key) {
        for (MessageExt message : messages) {
            if (key.equals(message.getKeys())) {
                return true;
            }
        }
        return false;
    }

    /** Divides all queues but the first: nobody gets that one. */
    private static final class LeavesTheFirstOut implements AllocateMessageQueueStrategy {
        @Override
        public List<MessageQueue> allocate(String group, String client, List<MessageQueue> all,
            List<String> clients) {
            List<MessageQueue> mine = new ArrayList<>();
            for (MessageQueue queue : all) {
                if (queue.getQueueId() != 0 || queue.getTopic().startsWith("%RETRY%")) {
                    mine.add(queue);
                }
            }
            return mine;
        }

        @Override
        public String getName() {
            return "LEAVES_FIRST_OUT";
        }
    }
}
