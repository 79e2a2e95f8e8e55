import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * Pulls {@code count} messages of a topic into the push consumer's cache, its listener never
 * returning, and says what memory that takes: the whole process (Linux), and the heap in use. Each
 * line of standard input is a consumer of its own; give each a group.
 *
 * <p>Arguments: namesrv topic group count.
 */
public final class JavaHoldingConsumer {
    private JavaHoldingConsumer() {
    }

    public static void main(String[] args) throws Exception {
        new Peer(args).eachRound(JavaHoldingConsumer::round);
        System.exit(0);
    }

    private static Peer.Measured round(Peer peer) throws Exception {
        long begin = System.nanoTime();
        int wanted = peer.number("count", 1);
        CountDownLatch never = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(peer.text("group"));
        peer.configure(consumer);
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
        double resident = residentMib();
        System.gc();
        long heap = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
        never.countDown();
        consumer.shutdown();
        return new Peer.Measured(wanted, System.nanoTime() - begin,
            "resident_mib", resident, "heap_mib", heap / 1048576.0);
    }

    private static double residentMib() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) {
                return Integer.parseInt(line.replaceAll("\\D+", "")) / 1024.0;
            }
        }
        throw new IllegalStateException("no VmRSS in /proc/self/status");
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
