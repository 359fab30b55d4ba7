package io.github.redislock.spring.boot;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.spi.Link;
import java.util.Collection;
import java.util.Set;
import java.util.stream.Collectors;
import org.springframework.data.redis.connection.RedisNode;
import org.springframework.data.redis.connection.RedisPassword;
import org.springframework.data.redis.connection.jedis.JedisClientConfiguration;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.providers.SentineledConnectionProvider;

/** Opens links with the settings of a connection factory, because it hides its Jedis. */
final class JedisLinks {
  private JedisLinks() {}

  /** Opens a link that makes its client in the background, because some clients connect at once. */
  static Link open(JedisConnectionFactory factory) {
    return new JedisLink(() -> new UnifiedJedis(providerOf(factory)));
  }

  private static ConnectionProvider providerOf(JedisConnectionFactory factory) {
    if (factory.isRedisClusterAware()) {
      var cluster = factory.getClusterConfiguration();
      return new ClusterConnectionProvider(addressesOf(cluster.getClusterNodes()),
          configOf(factory, cluster.getUsername(), cluster.getPassword(), 0));
    }
    if (factory.isRedisSentinelAware()) {
      var group = factory.getSentinelConfiguration();
      return new SentineledConnectionProvider(group.getMaster().getName(),
          configOf(factory, group.getUsername(), group.getPassword(), group.getDatabase()),
          addressesOf(group.getSentinels()),
          configOf(factory, group.getSentinelUsername(), group.getSentinelPassword(), 0));
    }
    var server = factory.getStandaloneConfiguration();
    return new PooledConnectionProvider(new HostAndPort(server.getHostName(), server.getPort()),
        configOf(factory, server.getUsername(), server.getPassword(), server.getDatabase()));
  }

  private static Set<HostAndPort> addressesOf(Collection<RedisNode> nodes) {
    return nodes.stream()
        .map(node -> new HostAndPort(node.getHost(), node.getPort()))
        .collect(Collectors.toSet());
  }

  private static JedisClientConfig configOf(
      JedisConnectionFactory factory, String username, RedisPassword password, int database) {
    JedisClientConfiguration client = factory.getClientConfiguration();
    DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder();
    client.getCustomizer().ifPresent(customizer -> customizer.customize(config));
    client.getClientName().ifPresent(config::clientName);
    client.getSslSocketFactory().ifPresent(config::sslSocketFactory);
    client.getSslParameters().ifPresent(config::sslParameters);
    client.getHostnameVerifier().ifPresent(config::hostnameVerifier);
    password.toOptional().map(String::new).ifPresent(config::password);
    return config.user(username)
        .database(database)
        .ssl(client.isUseSsl())
        .connectionTimeoutMillis(Math.toIntExact(client.getConnectTimeout().toMillis()))
        .socketTimeoutMillis(Math.toIntExact(client.getReadTimeout().toMillis()))
        .build();
  }
}
