import java.io.BufferedReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Evaluates SQL92 conditions with the broker's own filter, which must be on the class path.
 *
 * <p>Arguments: in out. A line of {@code in} is {@code P name value name value ...} (a message's
 * properties; all of these come first) or {@code E expression}, each word in base64. {@code out} gets
 * one line per expression: {@code !} when it does not compile, else a letter per message: T, F, N for
 * null, X when the evaluation fails. {@code B text} asks for the text's positions in the bloom filter.
 */
public final class JavaSqlFilter {
    private static final String HOME = "org.apache.rocketmq.filter.";

    private final Class<?> contextType = Class.forName(HOME + "expression.EvaluationContext");
    private final Method parse =
        Class.forName(HOME + "parser.SelectorParser").getMethod("parse", String.class);
    private final Method evaluate =
        Class.forName(HOME + "expression.Expression").getMethod("evaluate", contextType);
    private final List<Object> contexts = new ArrayList<>();

    private JavaSqlFilter() throws ReflectiveOperationException {
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        JavaSqlFilter filter = new JavaSqlFilter();
        try (BufferedReader in = Files.newBufferedReader(Path.of(peer.text("in")));
            PrintStream out = new PrintStream(peer.text("out"), StandardCharsets.UTF_8)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] words = line.split(" ", -1);
                if (words[0].equals("P")) {
                    filter.addMessage(words);
                } else if (words[0].equals("B")) {
                    out.println(positions(decoded(words[1])));
                } else {
                    out.println(filter.letters(decoded(words[1])));
                }
            }
        }
        Peer.say("event", "done");
    }

    private static String positions(String text) throws ReflectiveOperationException {
        Class<?> type = Class.forName(HOME + "util.BloomFilter");
        Object bloom = type.getMethod("createByFn", int.class, int.class).invoke(null, 20, 32);
        int[] found = (int[]) type.getMethod("calcBitPositions", String.class).invoke(bloom, text);
        return Arrays.toString(found) + " of " + type.getMethod("getM").invoke(bloom);
    }

    private static String decoded(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private void addMessage(String[] words) {
        Map<String, Object> properties = new HashMap<>();
        for (int i = 1; i + 1 < words.length; i += 2) {
            properties.put(decoded(words[i]), decoded(words[i + 1]));
        }
        contexts.add(Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {contextType},
            (proxy, method, values) ->
                method.getName().equals("get") ? properties.get(values[0]) : properties));
    }

    private String letters(String text) throws ReflectiveOperationException {
        Object expression;
        try {
            expression = parse.invoke(null, text);
        } catch (InvocationTargetException refused) {
            return "!";
        }
        StringBuilder line = new StringBuilder();
        for (Object context : contexts) {
            line.append(letter(expression, context));
        }
        return line.toString();
    }

    private char letter(Object expression, Object context) throws ReflectiveOperationException {
        try {
            Object value = evaluate.invoke(expression, context);
            return value == null ? 'N' : value.equals(Boolean.TRUE) ? 'T' : 'F';
        } catch (InvocationTargetException failed) {
            return 'X';
        }
    }
}
