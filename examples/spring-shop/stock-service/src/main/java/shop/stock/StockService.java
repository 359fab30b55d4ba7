package shop.stock;

import java.time.Duration;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.ConfigurationPropertiesScan;

/** Sells items from a stock in PostgreSQL. Several instances sell from the same stock. */
@SpringBootApplication
@ConfigurationPropertiesScan
class StockService {
  public static void main(String[] arguments) {
    SpringApplication.run(StockService.class, arguments);
  }

  /** The settings of the shop. application.properties describes each. */
  @ConfigurationProperties("shop")
  record Settings(Duration patience, Duration thinkTime) {}
}
