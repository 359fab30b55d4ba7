package io.github.redislock.spring.integration;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.concurrent.locks.Lock;
import org.springframework.util.ClassUtils;

/**
 * The DistributedLock of Spring Integration 7, which 6.5 doesn't have. A proxy implements it, so that
 * one class file serves both.
 */
final class DistributedLocks {
  private static final ClassLoader LOADER = DistributedLocks.class.getClassLoader();
  private static final String TYPE = "org.springframework.integration.support.locks.DistributedLock";
  private static final Class<?> DISTRIBUTED =
      ClassUtils.isPresent(TYPE, LOADER) ? ClassUtils.resolveClassName(TYPE, LOADER) : null;

  private DistributedLocks() {}

  /** Returns the lock, as a DistributedLock if there is that type. */
  static Lock published(RegistryLock lock) {
    if (DISTRIBUTED == null) return lock;
    InvocationHandler calls = (proxy, method, arguments) -> {
      if (method.getName().equals("equals")) return proxy == arguments[0];
      try {
        return RegistryLock.class.getMethod(method.getName(), method.getParameterTypes()).invoke(lock, arguments);
      } catch (InvocationTargetException thrown) {
        throw thrown.getCause();
      }
    };
    return (Lock) Proxy.newProxyInstance(LOADER, new Class<?>[] {DISTRIBUTED}, calls);
  }
}
