import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One side of request and reply with the Java client.
 *
 * <p>Arguments: namesrv topic group role=ask|answer, and for ask: count timeout. The answering side
 * replies with the body in capitals until standard input ends; requests with tag silent it ignores.
 */
public final class JavaRequestReply {
    private final Peer peer;
    private final DefaultMQProducer producer;

    private JavaRequestReply(Peer peer) throws Exception {
        this.peer = peer;
        producer = new DefaultMQProducer(peer.text("group") + "-p");
        peer.configure(producer, "peer-p-" + ProcessHandle.current().pid());
        producer.setSendMsgTimeout(10000);
        producer.setMqClientApiTimeout(10000);
        producer.start();
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        JavaRequestReply program = new JavaRequestReply(peer);
        if (peer.text("role").equals("ask")) {
            program.ask();
        } else {
            program.answer();
        }
        program.producer.shutdown();
        System.exit(0);
    }

    private void ask() throws Exception {
        for (int i = 0; i < peer.number("count", 1); i++) {
            byte[] body = ("java-" + i).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(peer.text("topic"), peer.text("tag", ""), body);
            try {
                Message reply = producer.request(message, peer.number("timeout", 20000));
                Peer.say("event", "reply", "body", new String(reply.getBody(), StandardCharsets.UTF_8),
                    "topic", reply.getTopic(), "type", reply.getProperty("MSG_TYPE"));
            } catch (RequestTimeoutException e) {
                Peer.say("event", "timeout", "code", e.getResponseCode());
            }
        }
    }

    private void answer() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(peer.text("group"));
        peer.configure(consumer);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullInterval(0);
        consumer.subscribe(peer.text("topic"), "*");
        consumer.registerMessageListener(new MessageListenerConcurrently() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> messages, ConsumeConcurrentlyContext context) {
                messages.forEach(JavaRequestReply.this::reply);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        consumer.start();
        Peer.say("event", "ready");
        Peer.awaitEndOfInput();
        consumer.shutdown();
    }

    private void reply(MessageExt request) {
        if ("silent".equals(request.getTags())) {
            return;
        }
        String text = new String(request.getBody(), StandardCharsets.UTF_8).toUpperCase();
        try {
            producer.send(MessageUtil.createReplyMessage(
                request, text.getBytes(StandardCharsets.UTF_8)));
        } catch (Exception e) {
            Peer.say("event", "failed", "error", e.toString());
        }
    }
}
