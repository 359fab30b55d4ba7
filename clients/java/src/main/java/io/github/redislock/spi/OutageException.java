package io.github.redislock.spi;

/** Thrown by a {@link Link} without a connection, after it lost one, or without a reply in time. */
public final class OutageException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final boolean isLate;

  private OutageException(String text, Throwable cause, boolean isLate) {
    super(text, cause);
    this.isLate = isLate;
  }

  /** Makes the failure of a connection. */
  public static OutageException failed(Throwable cause) {
    return new OutageException(inWords(cause), cause, false);
  }

  /** Makes the failure of connections that were closed for good. */
  public static OutageException closed() {
    return failed(new IllegalStateException("these connections are closed"));
  }

  /** Makes the lack of a reply in time. */
  public static OutageException late(Throwable cause) {
    return new OutageException("no reply in time", cause, true);
  }

  /** Returns true if no reply came in time, and false if something failed. */
  public boolean isLate() {
    return isLate;
  }

  /** Returns the texts of an error and its causes. */
  private static String inWords(Throwable error) {
    StringBuilder words = new StringBuilder();
    for (Throwable each = error; each != null; each = each.getCause()) {
      String text = each.getMessage();
      if (text == null || words.indexOf(text) >= 0) continue;
      words.append(words.isEmpty() ? "" : ": ").append(text);
    }
    return words.isEmpty() ? error.getClass().getSimpleName() : words.toString();
  }
}
