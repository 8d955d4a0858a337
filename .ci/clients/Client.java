import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;

/** A Java client of PostgreSQL, for .ci/nightly: Client.java PORT SSLMODE. */
class Client {
    public static void main(String[] arguments) throws Exception {
        String url = "jdbc:postgresql://127.0.0.1:" + arguments[0] + "/postgres?user=postgres&sslmode=" + arguments[1];
        try (Connection connection = DriverManager.getConnection(url)) {
            connection.createStatement().execute("create temp table numbers (n integer, long text)");
            PreparedStatement insert = connection.prepareStatement("insert into numbers values (?, ?)");
            for (int number = 1; number <= 1000; number++) {
                insert.setInt(1, number);
                insert.setString(2, "x".repeat(number * 37));
                insert.execute();
            }
            ResultSet rows = connection.createStatement().executeQuery("select n, long from numbers order by n");
            int count = 0, sum = 0;
            while (rows.next()) {
                if (rows.getString(2).length() != rows.getInt(1) * 37) throw new AssertionError("row " + rows.getInt(1));
                count++;
                sum += rows.getInt(1);
            }
            System.out.println(count + " rows, sum " + sum);
        }
    }
}
