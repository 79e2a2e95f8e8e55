import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;
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
