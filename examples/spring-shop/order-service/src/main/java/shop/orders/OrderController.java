package shop.orders;

import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.client.RestClientResponseException;

/** The HTTP interface of the shop. */
@RestController
@RequestMapping("/items/{item}")
class OrderController {
  private final Orders orders;

  OrderController(Orders orders) {
    this.orders = orders;
  }

  /** Orders one unit. */
  @PostMapping("/orders")
  Orders.Receipt order(@PathVariable int item) {
    return orders.order(item);
  }

  /** Orders many units: as many from each instance of the stock service, at the same time. */
  @PostMapping("/rush")
  Orders.Rush rush(@PathVariable int item, @RequestParam int ordersPerInstance) throws InterruptedException {
    return orders.rush(item, ordersPerInstance);
  }

  /** Passes on why the stock service didn't sell. */
  @ExceptionHandler
  ResponseEntity<String> notSold(RestClientResponseException answer) {
    return ResponseEntity.status(answer.getStatusCode())
        .contentType(MediaType.APPLICATION_PROBLEM_JSON)
        .body(answer.getResponseBodyAsString());
  }
}
