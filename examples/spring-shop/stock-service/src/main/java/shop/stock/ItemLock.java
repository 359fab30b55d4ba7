package shop.stock;

import java.util.function.LongPredicate;

/** The lock of each item, by which one sale of an item runs at a time. */
@FunctionalInterface
interface ItemLock {
  /** The fence of locks that have none. */
  long NO_FENCE = 0;

  /**
   * Runs a sale under the lock of its item.
   *
   * @param sale gets the fence of the grant, and returns true if it sold
   */
  boolean whileLocked(int item, LongPredicate sale) throws InterruptedException;
}
