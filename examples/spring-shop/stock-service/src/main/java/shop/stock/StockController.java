package shop.stock;

import static org.springframework.format.annotation.DurationFormat.Style.SIMPLE;

import io.github.redislock.LockLostException;
import io.github.redislock.NotAcquiredException;
import io.github.redislock.UnavailableException;
import java.time.Duration;
import org.springframework.dao.EmptyResultDataAccessException;
import org.springframework.format.annotation.DurationFormat;
import org.springframework.http.HttpStatus;
import org.springframework.http.ProblemDetail;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.PutMapping;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import shop.stock.StockService.Settings;

/** The HTTP interface of the stock. */
@RestController
@RequestMapping("/items/{item}")
class StockController {
  private final ItemLock itemLock;
  private final Shelf shelf;
  private final Settings settings;

  StockController(ItemLock itemLock, Shelf shelf, Settings settings) {
    this.itemLock = itemLock;
    this.shelf = shelf;
    this.settings = settings;
  }

  /** The answer to an order. */
  record Receipt(long order, boolean sold) {}

  @PutMapping
  void fill(@PathVariable int item, @RequestParam int units) {
    shelf.fill(item, units);
  }

  @GetMapping
  Shelf.Stock stock(@PathVariable int item) {
    return shelf.stock(item);
  }

  /** Sells one unit to an order. The parameter {@code think} makes the sale slow, to look at its lock. */
  @PostMapping("/orders/{order}")
  Receipt sell(
      @PathVariable int item,
      @PathVariable long order,
      @RequestParam(required = false) @DurationFormat(style = SIMPLE) Duration think)
      throws InterruptedException {
    Duration thinkTime = think == null ? settings.thinkTime() : think;
    try {
      return new Receipt(order, itemLock.whileLocked(item, fence -> shelf.sell(item, order, fence, thinkTime)));
    } catch (LockLostException lost) {
      // The database has checked the fence, so a sale that it has is right.
      return new Receipt(order, shelf.hasSold(order));
    }
  }

  @ExceptionHandler(EmptyResultDataAccessException.class)
  ProblemDetail unknown() {
    return ProblemDetail.forStatusAndDetail(HttpStatus.NOT_FOUND, "no such item");
  }

  @ExceptionHandler(StaleFenceException.class)
  ProblemDetail refused(StaleFenceException stale) {
    return ProblemDetail.forStatusAndDetail(HttpStatus.CONFLICT, stale.getMessage());
  }

  @ExceptionHandler({NotAcquiredException.class, UnavailableException.class})
  ProblemDetail notNow(RuntimeException reason) {
    return ProblemDetail.forStatusAndDetail(HttpStatus.SERVICE_UNAVAILABLE, reason.getMessage());
  }
}
