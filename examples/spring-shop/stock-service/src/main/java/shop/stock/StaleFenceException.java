package shop.stock;

/** A write of a holder whose lock has passed to another holder. The database refused it. */
class StaleFenceException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  StaleFenceException(long fence) {
    super("fence " + fence + " is older than the one that the database has");
  }
}
