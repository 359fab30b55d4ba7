package shop.stock;

/** A write of a holder whose lock has passed to another holder. The database refused it. */
class StaleFenceException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  StaleFenceException(long fence, long newer) {
    super("fence " + fence + " is less than " + newer + ", which the database has");
  }
}
