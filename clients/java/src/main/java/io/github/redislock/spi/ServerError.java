package io.github.redislock.spi;

import java.util.Set;

/** An error reply of the server, in its own words. */
public final class ServerError extends RuntimeException {
  private static final Set<String> OF_REPLICAS = Set.of("READONLY", "MASTERDOWN");

  /** Makes the error of a reply. */
  public ServerError(String reply, Throwable cause) {
    super(reply, cause);
  }

  /** Returns the first word of the reply, for example {@code READONLY}. */
  public String code() {
    String reply = String.valueOf(getMessage());
    int end = reply.indexOf(' ');
    return end < 0 ? reply : reply.substring(0, end);
  }

  /** Returns true if the server isn't a primary, or not any more. */
  public boolean isOfReplica() {
    return OF_REPLICAS.contains(code());
  }
}
