package shop.orders;

import java.net.URI;
import java.util.List;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.ConfigurationPropertiesScan;

/** Takes orders, and has the instances of the stock service sell them. */
@SpringBootApplication
@ConfigurationPropertiesScan
class OrderService {
  public static void main(String[] arguments) {
    SpringApplication.run(OrderService.class, arguments);
  }

  /** The settings of the shop. application.properties describes each. */
  @ConfigurationProperties("shop")
  record Settings(List<URI> stock, int customersPerInstance) {}
}
