package shop.stock;

import java.time.Duration;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.stereotype.Repository;
import org.springframework.transaction.annotation.Transactional;

/** The stock and the sales in PostgreSQL. An unknown item is an EmptyResultDataAccessException. */
@Repository
class Shelf {
  private final JdbcClient database;

  Shelf(JdbcClient database) {
    this.database = database;
  }

  /** The stock of an item. */
  record Stock(int units, long fence, long sold) {}

  /** Sets the stock of an item, and forgets its sales. */
  @Transactional
  public void fill(int item, int units) {
    database.sql("DELETE FROM sale WHERE item = ?").param(item).update();
    database.sql("""
        INSERT INTO stock (item, units) VALUES (?, ?)
        ON CONFLICT (item) DO UPDATE SET units = excluded.units, fence = 0
        """).param(item).param(units).update();
  }

  /** Returns the stock of an item. */
  public Stock stock(int item) {
    return database.sql("""
        SELECT units, fence, (SELECT count(*) FROM sale WHERE sale.item = stock.item) AS sold
        FROM stock WHERE item = ?
        """).param(item).query(Stock.class).single();
  }

  /**
   * Puts the fence of a new holder on the item, before the holder reads. From then on the database
   * refuses what an earlier holder writes.
   */
  public void raiseFence(int item, long fence) {
    int raised = database.sql("UPDATE stock SET fence = :fence WHERE item = :item AND fence <= :fence")
        .param("item", item).param("fence", fence).update();
    if (raised == 0) throw new StaleFenceException(fence, stock(item).fence());
  }

  /**
   * Sells one unit: reads the stock, decides, and writes. Right only if no other sale of the item runs
   * at the same time. The transaction is committed when this returns, so before the lock is released.
   *
   * @return true if a unit was left
   * @throws StaleFenceException if a later holder has put its fence on the item. Nothing is written then
   */
  @Transactional
  public boolean sell(int item, long order, long fence, Duration thinkTime) {
    int units = database.sql("SELECT units FROM stock WHERE item = ?").param(item).query(Integer.class).single();
    if (units == 0) return false;
    pause(thinkTime);
    int written = database.sql("UPDATE stock SET units = :units, fence = :fence WHERE item = :item AND fence <= :fence")
        .param("units", units - 1).param("fence", fence).param("item", item).update();
    if (written == 0) throw new StaleFenceException(fence, stock(item).fence());
    database.sql("INSERT INTO sale (order_id, item, fence) VALUES (?, ?, ?)")
        .param(order).param(item).param(fence).update();
    return true;
  }

  /** Returns true if the order was sold. */
  public boolean hasSold(long order) {
    return database.sql("SELECT count(*) FROM sale WHERE order_id = ?").param(order).query(Integer.class).single() > 0;
  }

  private static void pause(Duration time) {
    try {
      Thread.sleep(time.toMillis());
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("interrupted while selling", interrupt);
    }
  }
}
