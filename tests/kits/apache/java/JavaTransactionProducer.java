import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends {@code count} messages in transactions with the Java client and answers checks.
 *
 * <p>Arguments: namesrv topic group, and: count prefix decide check size. decide and check are words of
 * C (commit), R (roll back) and U (undecided), taken in turn by the message's index; check may be
 * longer by a second word after a comma for the second check, and so on. Says "done" when all are
 * sent and "checked" for each check; ends when standard input does.
 */
public final class JavaTransactionProducer implements TransactionListener {
    private final Peer peer;
    private final String decide;
    private final String[] check;
    private final Map<String, Integer> checks = new ConcurrentHashMap<>();

    private JavaTransactionProducer(Peer peer) {
        this.peer = peer;
        decide = peer.text("decide", "C");
        check = peer.text("check", "C").split(",");
    }

    public static void main(String[] args) throws Exception {
        new JavaTransactionProducer(new Peer(args)).run();
        System.exit(0);
    }

    private void run() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(null, peer.text("group"), null,
            peer.flag("trace", false), peer.text("tracetopic", null));
        peer.configure(producer);
        producer.setSendMsgTimeout(10000);
        producer.setMqClientApiTimeout(10000);
        producer.setTransactionListener(this);
        producer.start();
        int count = peer.number("count", 1);
        String prefix = peer.text("prefix", "t");
        for (int i = 0; i < count; i++) {
            Message message = new Message(peer.text("topic"), "A", prefix + "-" + i,
                Peer.body(prefix, i, peer.number("size", 100)));
            message.putUserProperty("index", String.valueOf(i));
            TransactionSendResult result = producer.sendMessageInTransaction(message, i);
            if (count <= 10) {
                Peer.say("event", "sent", "index", i, "state", result.getLocalTransactionState(),
                    "status", result.getSendStatus(), "msgid", result.getMsgId());
            }
        }
        Peer.say("event", "done", "count", count);
        Peer.awaitEndOfInput();
        producer.shutdown();
        Peer.say("event", "closed", "checked", checks.size());
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
        return state(decide.charAt((Integer) arg % decide.length()));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int index = Integer.parseInt(message.getUserProperty("index"));
        int times = checks.merge(message.getTransactionId(), 1, Integer::sum);
        String word = check[Math.min(times, check.length) - 1];
        Peer.say("event", "checked", "index", index, "times", times,
            "counted", String.valueOf(message.getUserProperty("TRANSACTION_CHECK_TIMES")),
            "topic", message.getTopic(), "body", Peer.digest(message.getBody()));
        return state(word.charAt(index % word.length()));
    }

    private static LocalTransactionState state(char letter) {
        return switch (letter) {
            case 'C' -> LocalTransactionState.COMMIT_MESSAGE;
            case 'R' -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }
}
