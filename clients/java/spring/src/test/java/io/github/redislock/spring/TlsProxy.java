package io.github.redislock.spring;

import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;

/** TLS before a server that has none, with a certificate for 127.0.0.1 which nobody trusts yet. */
public final class TlsProxy implements AutoCloseable {
  public static final String PASSWORD = "changeit";

  private final Path store;
  private final SSLServerSocket accepting;

  public TlsProxy(TestServer server) throws Exception {
    store = Files.createTempDirectory("redis-lock-tls").resolve("store.p12");
    generate(store);
    SSLContext tls = SSLContext.getInstance("TLS");
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    try (InputStream file = Files.newInputStream(store)) {
      KeyStore loaded = KeyStore.getInstance("PKCS12");
      loaded.load(file, PASSWORD.toCharArray());
      keys.init(loaded, PASSWORD.toCharArray());
    }
    tls.init(keys.getKeyManagers(), null, null);
    accepting = (SSLServerSocket) tls.getServerSocketFactory().createServerSocket(0);
    inBackground(() -> {
      while (true) {
        Socket client = accepting.accept();
        Socket plain = new Socket("127.0.0.1", server.port());
        inBackground(() -> copied(client, plain));
        inBackground(() -> copied(plain, client));
      }
    });
  }

  public int port() {
    return accepting.getLocalPort();
  }

  /** Returns the file with the certificate, to be trusted. */
  public Path store() {
    return store;
  }

  @Override
  public void close() throws IOException {
    accepting.close();
  }

  private static void generate(Path store) throws Exception {
    Process keytool = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "keytool").toString(),
            "-genkeypair", "-alias", "server", "-keyalg", "EC", "-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1",
            "-storetype", "PKCS12", "-storepass", PASSWORD, "-keystore", store.toString())
        .inheritIO()
        .start();
    if (!keytool.waitFor(60, TimeUnit.SECONDS) || keytool.exitValue() != 0) throw new IllegalStateException("keytool");
  }

  private interface Work {
    void run() throws IOException;
  }

  private static void inBackground(Work work) {
    Thread thread = new Thread(() -> {
      try {
        work.run();
      } catch (IOException closed) {
        // The end of the test or of a connection.
      }
    });
    thread.setDaemon(true);
    thread.start();
  }

  private static void copied(Socket from, Socket to) throws IOException {
    try (from; to) {
      from.getInputStream().transferTo(to.getOutputStream());
    }
  }
}
