import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A worker of Java's client: sends, or consumes, and writes the same history as ours.
 *
 * <p>Arguments: role by folder namesrv topic group. The end is SIGTERM.
 */
public final class Outside {
    private static final List<String> OURS = List.of("ident", "shade", "note");
    private static final String[] TAGS = {"A", "B", "C"};

    private final String by;
    private final Path folder;
    private final String topic;
    private final String group;
    private final String namesrv;
    private final Path history;
    private final AtomicLong calls = new AtomicLong();
    private final CountDownLatch leaving = new CountDownLatch(1);
    private final CountDownLatch left = new CountDownLatch(1);

    private Outside(String[] args) {
        by = args[1];
        folder = Path.of(args[2]);
        namesrv = args[3];
        topic = args[4];
        group = args[5];
        history = folder.resolve("history").resolve(by.replace('#', '-') + ".jsonl");
    }

    public static void main(String[] args) throws Exception {
        Outside worker = new Outside(args);
        Runtime.getRuntime().addShutdownHook(new Thread(worker::leave));
        worker.note("start", "\"role\":" + quoted(args[0]) + ",\"group\":" + quoted(args[5]));
        switch (args[0]) {
            case "java-sync" -> worker.send();
            case "java-push" -> worker.consume(false);
            case "java-orderly" -> worker.consume(true);
            default -> throw new IllegalArgumentException(args[0]);
        }
        worker.note("stopped", "");
        worker.left.countDown();
    }

    private void leave() {
        leaving.countDown();
        try {
            left.await(50, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void configure(ClientConfig client) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(by.split("#")[0]);
        client.setHeartbeatBrokerInterval(1_000);
        client.setPollNameServerInterval(5_000);
    }

    private void send() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("p-" + by.split("#")[0]);
        configure(producer);
        producer.start();
        note("ready", "");
        Random chance = new Random();
        for (int n = 0; leaving.getCount() > 0 && !Files.exists(folder.resolve("quiet")); n++) {
            sendOne(producer, by.replace('#', '.') + "-" + n, chance);
            leaving.await(chance.nextInt(130), TimeUnit.MILLISECONDS);
        }
        leaving.await();
        note("stopping", "");
        producer.shutdown();
    }

    private void sendOne(DefaultMQProducer producer, String ident, Random chance) {
        byte[] filler = new byte[chance.nextInt(5) == 0 ? 6_000 : chance.nextInt(200)];
        chance.nextBytes(filler);
        byte[] head = (ident + "|").getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[head.length + filler.length];
        System.arraycopy(head, 0, body, 0, head.length);
        System.arraycopy(filler, 0, body, head.length, filler.length);
        Message message = new Message(topic, TAGS[chance.nextInt(3)], ident + " java", body);
        message.putUserProperty("ident", ident);
        message.putUserProperty("note", "Ünïcode ✓ a=b|c");
        note("send", "\"how\":\"sync\",\"retries\":2,\"delay_s\":0,\"sharding_key\":\"\","
            + "\"ident\":" + quoted(ident) + "," + described(message));
        try {
            SendResult result = producer.send(message);
            note("sent", "\"ident\":" + quoted(ident) + ",\"outcome\":"
                + quoted(result.getSendStatus().name()) + ",\"place\":"
                + place(result.getMessageQueue(), result.getQueueOffset()));
        } catch (Exception e) {
            // Java tells nothing of what became of the message.
            note("sent", "\"ident\":" + quoted(ident) + ",\"outcome\":\"UNKNOWN\",\"text\":"
                + quoted(String.valueOf(e.getMessage())));
        }
    }

    private void consume(boolean inOrder) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.subscribe(topic, "*");
        if (inOrder) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                long call = given(messages, context.getMessageQueue());
                taken(call, "done");
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.setMaxReconsumeTimes(2);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                long call = given(messages, context.getMessageQueue());
                MessageExt first = messages.get(0);
                int chance = Math.floorMod(first.getUserProperty("ident").hashCode(), 20);
                boolean fails = chance == 0 && first.getReconsumeTimes() == 0;
                taken(call, fails ? "later" : "done");
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        note("ready", "");
        leaving.await();
        note("stopping", "");
        consumer.shutdown();
    }

    private long given(List<MessageExt> messages, MessageQueue queue) {
        long call = calls.incrementAndGet();
        List<String> told = new ArrayList<>();
        for (MessageExt message : messages) {
            told.add("{\"ident\":" + quoted(message.getUserProperty("ident")) + ","
                + described(message) + ",\"tries\":" + message.getReconsumeTimes()
                + ",\"place\":" + place(queue, message.getQueueOffset()) + "}");
        }
        note("given", "\"group\":" + quoted(group) + ",\"call\":" + call + ",\"thread\":"
            + Thread.currentThread().getId() + ",\"messages\":[" + String.join(",", told) + "]");
        return call;
    }

    private void taken(long call, String verdict) {
        note("taken", "\"call\":" + call + ",\"verdict\":" + quoted(verdict));
    }

    private static String described(Message message) {
        Map<String, String> found = new LinkedHashMap<>();
        for (String name : OURS) {
            String value = message.getUserProperty(name);
            if (value != null) {
                found.put(name, value);
            }
        }
        List<String> properties = new ArrayList<>();
        found.forEach((name, value) -> properties.add(quoted(name) + ":" + quoted(value)));
        return "\"topic\":" + quoted(message.getTopic()) + ",\"tags\":" + quoted(message.getTags())
            + ",\"keys\":" + quoted(message.getKeys()) + ",\"properties\":{"
            + String.join(",", properties) + "},\"digest\":" + quoted(digest(message.getBody()));
    }

    private static String place(MessageQueue queue, long offset) {
        return "[" + quoted(queue.getTopic()) + "," + queue.getQueueId() + "," + offset + "]";
    }

    private static String digest(byte[] body) {
        try {
            byte[] all = MessageDigest.getInstance("SHA-256").digest(body);
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < 8; i++) {
                text.append(String.format("%02x", all[i]));
            }
            return text.toString();
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    private synchronized void note(String kind, String rest) {
        String line = "{\"at\":" + System.nanoTime() + ",\"kind\":" + quoted(kind) + ",\"by\":"
            + quoted(by) + (rest.isEmpty() ? "" : "," + rest) + "}\n";
        try {
            Files.writeString(history, line, StandardCharsets.UTF_8,
                StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (java.io.IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : (text == null ? "" : text).toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
