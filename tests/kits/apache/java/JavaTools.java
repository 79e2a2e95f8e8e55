import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin's commands one after the other in one process, whose start costs more than a command. Each line
 * of standard input is one, its words parted by the unit separator; a record separator ends what it prints.
 */
public final class JavaTools {
    public static void main(String[] args) throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            try {
                MQAdminStartup.main(line.split("\037", -1));
            } catch (Throwable failure) {
                failure.printStackTrace();
            }
            System.err.flush();
            System.out.println("\n\036");
            System.out.flush();
        }
        System.exit(0);
    }
}
