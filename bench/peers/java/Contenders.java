import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;
import java.util.stream.Collectors;

/**
 * Threads that contend for one lock, with the one client of their process.
 *
 * <p>A driver gets the arguments {@code LIBRARY PORT CONTENDERS WARM_SECONDS HELD_MS OTHER_MS}. Each
 * contender has the lock for HELD_MS, and does without it for OTHER_MS before it asks again. Prints
 * {@code ready} WARM_SECONDS after the first grant of this process, when the JVM is warm. Counts from
 * the line {@code begin} to the line {@code end} of its input, and then prints a line of JSON: the
 * grants of each contender, all waits in microseconds, the seconds, and the processor time of this
 * process in that time.
 */
final class Contenders {
  static final String KEY = "lock";
  static final long LEASE_MS = 30_000;

  private Contenders() {}

  /** The counts of one thread. */
  private static final class Contender implements Runnable {
    private final Lock lock;
    private final long heldMs;
    private final long otherMs;
    private long grants;
    private List<Long> waits = new ArrayList<>();
    private long sinceNanos;
    private boolean isWaiting;

    Contender(Lock lock, String[] arguments) {
      this.lock = lock;
      heldMs = Long.parseLong(arguments[4]);
      otherMs = Long.parseLong(arguments[5]);
    }

    @Override
    public void run() {
      try {
        while (true) {
          beginWait();
          lock.lock();
          granted();
          if (heldMs > 0) Thread.sleep(heldMs);
          lock.unlock();
          if (otherMs > 0) Thread.sleep(otherMs);
        }
      } catch (Throwable error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
      }
    }

    private synchronized void beginWait() {
      sinceNanos = System.nanoTime();
      isWaiting = true;
    }

    private synchronized void granted() {
      grants++;
      waits.add(waitedMicros());
      isWaiting = false;
    }

    synchronized boolean wasGranted() {
      return grants > 0;
    }

    private long waitedMicros() {
      return (System.nanoTime() - sinceNanos) / 1000;
    }

    synchronized void clear() {
      grants = 0;
      waits = new ArrayList<>();
    }

    /** Adds the counts of this thread to the lists. A wait in progress counts with its age. */
    synchronized void report(List<Long> allGrants, List<Long> allWaits) {
      allGrants.add(grants);
      allWaits.addAll(waits);
      if (isWaiting) allWaits.add(waitedMicros());
    }
  }

  /** Runs the contenders. {@code prepare} returns the lock of one contender. */
  static void run(String[] arguments, Supplier<Lock> prepare) throws Exception {
    int count = Integer.parseInt(arguments[2]);
    List<Contender> contenders = new ArrayList<>();
    for (int index = 0; index < count; index++) {
      Contender contender = new Contender(prepare.get(), arguments);
      contenders.add(contender);
      Thread thread = new Thread(contender);
      thread.setDaemon(true);
      thread.start();
    }
    while (contenders.stream().noneMatch(Contender::wasGranted)) Thread.sleep(10);
    Thread.sleep((long) (Double.parseDouble(arguments[3]) * 1000));
    report(contenders);
    // Exits without the contenders that are still waiting.
    Runtime.getRuntime().halt(0);
  }

  private static void report(List<Contender> contenders) throws Exception {
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    System.out.println("ready");
    input.readLine();
    contenders.forEach(Contender::clear);
    long beginNanos = System.nanoTime();
    long cpuNanos = cpuNanos();
    input.readLine();
    double seconds = (System.nanoTime() - beginNanos) / 1e9;
    double cpu = (cpuNanos() - cpuNanos) / 1e9;
    List<Long> grants = new ArrayList<>();
    List<Long> waits = new ArrayList<>();
    contenders.forEach(contender -> contender.report(grants, waits));
    System.out.println(
        "{\"grants\":" + json(grants) + ",\"waits\":" + json(waits) + ",\"seconds\":" + seconds + ",\"cpu\":" + cpu + "}");
    System.out.flush();
  }

  private static long cpuNanos() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
  }

  private static String json(List<Long> numbers) {
    return numbers.stream().map(String::valueOf).collect(Collectors.joining(",", "[", "]"));
  }
}
