package shop.orders;

import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.springframework.stereotype.Service;
import org.springframework.web.client.HttpClientErrorException;
import org.springframework.web.client.RestClient;
import shop.orders.OrderService.Settings;

/** Sends orders to the instances of the stock service, to one after the other. */
@Service
class Orders {
  private static final int ATTEMPTS = 5;

  private final RestClient stock = RestClient.create();
  private final Settings settings;
  private final AtomicLong latest = new AtomicLong();

  Orders(Settings settings) {
    this.settings = settings;
  }

  /** The answer of the stock service to an order. */
  record Receipt(long order, boolean sold) {}

  /** The outcome of many orders at once. */
  record Rush(long sold, long refused, double seconds) {}

  /** Orders one unit at the next instance. */
  Receipt order(int item) {
    long order = latest.incrementAndGet();
    List<URI> instances = settings.stock();
    return send(instances.get((int) (order % instances.size())), item, order);
  }

  /** Has as many orders for each instance. Each instance gets an order for every order of the others. */
  Rush rush(int item, int ordersPerInstance) throws InterruptedException {
    int instances = settings.stock().size();
    ExecutorService customers = Executors.newFixedThreadPool(instances * settings.customersPerInstance());
    try {
      long startedAt = System.nanoTime();
      List<Future<Receipt>> receipts = new ArrayList<>();
      for (int count = 0; count < instances * ordersPerInstance; count++) receipts.add(customers.submit(() -> order(item)));
      long sold = 0;
      for (Future<Receipt> receipt : receipts) {
        if (receipt.get().sold()) sold++;
      }
      double seconds = Duration.ofNanos(System.nanoTime() - startedAt).toMillis() / 1000.0;
      return new Rush(sold, receipts.size() - sold, seconds);
    } catch (ExecutionException failed) {
      throw new IllegalStateException("an order failed: " + failed.getCause().getMessage(), failed.getCause());
    } finally {
      customers.shutdownNow();
    }
  }

  /** Sends an order, and again if it lost its lock. The instance has written nothing then. */
  private Receipt send(URI instance, int item, long order) {
    for (int attempt = 1; ; attempt++) {
      try {
        return stock.post().uri(instance + "/items/{item}/orders/{order}", item, order).retrieve().body(Receipt.class);
      } catch (HttpClientErrorException.Conflict lostItsLock) {
        if (attempt == ATTEMPTS) throw lostItsLock;
      }
    }
  }
}
