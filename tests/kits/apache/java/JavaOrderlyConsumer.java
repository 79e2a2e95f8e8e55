import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes in order with the Java push consumer until standard input ends.
 *
 * <p>Arguments: namesrv topic group, and: out batch pause (ms per call). A row is written before a
 * message counts as consumed.
 */
public final class JavaOrderlyConsumer implements MessageListenerOrderly {
    private final Peer peer;
    private final Peer.Rows rows;
    private final int pause;

    private JavaOrderlyConsumer(Peer peer) throws Exception {
        this.peer = peer;
        rows = new Peer.Rows(peer.text("out", null));
        pause = peer.number("pause", 0);
    }

    public static void main(String[] args) throws Exception {
        new JavaOrderlyConsumer(new Peer(args)).run();
        System.exit(0);
    }

    private void run() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(peer.text("group"));
        peer.configure(consumer);
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(100);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(peer.number("batch", 1));
        consumer.setAwaitTerminationMillisWhenShutdown(10000);
        consumer.subscribe(peer.text("topic"), "*");
        consumer.registerMessageListener(this);
        consumer.start();
        Peer.say("event", "ready");
        Peer.awaitEndOfInput();
        consumer.shutdown();
        rows.close();
        Peer.say("event", "closed");
    }

    @Override
    public ConsumeOrderlyStatus consumeMessage(
        List<MessageExt> messages, ConsumeOrderlyContext context) {
        try {
            Thread.sleep(pause);
        } catch (InterruptedException e) {
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }
        rows.addReceived(messages, "OK");
        return ConsumeOrderlyStatus.SUCCESS;
    }
}
