import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What the programs beside it share: key=value arguments, bodies that both sides can compute, JSON
 * lines on standard output, and the tab-separated record of what was sent or received.
 */
final class Peer {
    private static final int FILLER_BYTES = 4 * 1024 * 1024;
    private static final byte[] FILLER = filler();

    private final Map<String, String> values = new LinkedHashMap<>();

    Peer(String[] args) {
        take(args);
    }

    /** The arguments of one round: those of the program, and over them what its line says. */
    private Peer(Peer program, String[] words) {
        values.putAll(program.values);
        take(words);
    }

    private void take(String[] args) {
        for (String arg : args) {
            int equals = arg.indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("expected name=value, got " + arg);
            }
            values.put(arg.substring(0, equals), arg.substring(equals + 1));
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing argument " + name + "=");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    boolean flag(String name, boolean otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Boolean.parseBoolean(value);
    }

    /** Tells a client where its name server is and who it is among the clients here. */
    void configure(ClientConfig client) {
        configure(client, "peer-" + ProcessHandle.current().pid());
    }

    /** The same for one of several clients of a process. */
    void configure(ClientConfig client, String instance) {
        client.setNamesrvAddr(text("namesrv"));
        client.setInstanceName(instance);
        // A cold JVM on a busy machine may take longer than Java's own 3 s, and a consumer of 5.5
        // whose first request goes unanswered does not start.
        client.setMqClientApiTimeout(20_000);
        // A consumer that takes a queue announces it with a heartbeat and leaves that out while
        // another is under way: until the next one, 30 s later, the broker refuses its pulls.
        client.setHeartbeatBrokerInterval(1_000);
    }

    private static byte[] filler() {
        byte[] bytes = new byte[FILLER_BYTES];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) ('a' + i % 26);
        }
        return bytes;
    }

    /** The body of message {@code index}: its name, then the alphabet up to {@code size} bytes. */
    static byte[] body(String prefix, int index, int size) {
        byte[] head = (prefix + "-" + index + "|").getBytes(StandardCharsets.UTF_8);
        if (head.length >= size) {
            return head;
        }
        byte[] body = new byte[size];
        System.arraycopy(head, 0, body, 0, head.length);
        System.arraycopy(FILLER, head.length, body, head.length, size - head.length);
        return body;
    }

    static String digest(byte[] body) {
        CRC32 crc = new CRC32();
        crc.update(body);
        return body.length + ":" + Long.toHexString(crc.getValue());
    }

    /** Prints one JSON object: names and values alternate; numbers stay bare. */
    static synchronized void say(Object... namesAndValues) {
        StringBuilder line = new StringBuilder("{");
        for (int i = 0; i < namesAndValues.length; i += 2) {
            Object value = namesAndValues[i + 1];
            line.append(i == 0 ? "" : ",").append('"').append(namesAndValues[i]).append("\":");
            if (value instanceof Number || value instanceof Boolean) {
                line.append(value);
            } else {
                line.append('"').append(escape(String.valueOf(value))).append('"');
            }
        }
        System.out.println(line.append('}'));
        System.out.flush();
    }

    private static String escape(String text) {
        StringBuilder out = new StringBuilder();
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.toString();
    }

    /** Returns when standard input ends, which is how the starter asks for the end. */
    static void awaitEndOfInput() throws IOException {
        byte[] sink = new byte[256];
        while (System.in.read(sink) >= 0) {
            continue;
        }
    }

    /** What a measured program does again and again in one JVM. */
    interface Round {
        /** Does one round with these arguments and returns what it measured. */
        Measured run(Peer peer) throws Exception;
    }

    /** How many messages a round took, how long, and more names and values to say. */
    record Measured(long count, long nanos, Object... more) {
    }

    /** Whether the program is told each of its rounds on standard input. */
    boolean rounds() {
        return flag("rounds", false);
    }

    /**
     * Does a round for each line of standard input, whose name=value words go over the program's own
     * arguments, and says what it measured; returns when standard input ends.
     */
    void eachRound(Round round) throws IOException {
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String words = line.strip();
            Peer peer = new Peer(this, words.isEmpty() ? new String[0] : words.split("\\s+"));
            long before = system.getProcessCpuTime();
            Measured done = orExit(round, peer);
            double spent = (system.getProcessCpuTime() - before) / 1e3 / Math.max(1, done.count());
            Object[] told = {"event", "round", "count", done.count(), "seconds",
                done.nanos() / 1e9, "rate", rate(done.count(), done.nanos()), "cpu_us", spent};
            Object[] all = Arrays.copyOf(told, told.length + done.more().length);
            System.arraycopy(done.more(), 0, all, told.length, done.more().length);
            say(all);
        }
    }

    /** A round that fails ends the program, whatever threads the client still has. */
    private static Measured orExit(Round round, Peer peer) {
        try {
            return round.run(peer);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1);
            throw new AssertionError("unreachable");
        }
    }

    /** Figures of a run, one place so that each program counts alike. */
    static double rate(long count, long nanos) {
        return nanos <= 0 ? 0.0 : Math.round(count * 1e10 / nanos) / 10.0;
    }

    /** A file of tab-separated rows, or nothing at all when no file was asked for. */
    static final class Rows implements AutoCloseable {
        private final BufferedWriter writer;

        Rows(String file) throws IOException {
            writer = file == null
                ? null
                : Files.newBufferedWriter(Path.of(file), StandardCharsets.UTF_8);
        }

        boolean wanted() {
            return writer != null;
        }

        synchronized void add(Object... columns) {
            if (writer == null) {
                return;
            }
            try {
                for (int i = 0; i < columns.length; i++) {
                    writer.write(i == 0 ? "" : "\t");
                    writer.write(columns[i] == null ? "" : String.valueOf(columns[i]));
                }
                writer.write('\n');
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
        }

        void addReceived(List<MessageExt> messages, String outcome) {
            if (writer == null) {
                return;
            }
            for (MessageExt m : messages) {
                add(outcome, m.getTopic(), m.getBrokerName(), m.getQueueId(), m.getQueueOffset(),
                    m.getMsgId(), m.getKeys(), m.getTags(), m.getReconsumeTimes(),
                    digest(m.getBody()), m.getUserProperty("index"));
            }
            flush();
        }

        /** What a listener has seen must be in the file before the process may be killed. */
        private synchronized void flush() {
            try {
                writer.flush();
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public synchronized void close() throws IOException {
            if (writer != null) {
                writer.close();
            }
        }
    }
}
