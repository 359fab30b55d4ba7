package io.github.redislock;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;

/** Calls of the program's hooks. */
final class Events {
  static final Logger LOG = System.getLogger("io.github.redislock");

  private Events() {}

  /** Calls a hook, and logs what it throws. */
  static void tell(Runnable hook) {
    try {
      hook.run();
    } catch (RuntimeException | Error fault) {
      LOG.log(Level.WARNING, "a hook of locks failed", fault);
    }
  }
}
