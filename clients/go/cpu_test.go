//go:build !race

package redislock_test

import (
	"syscall"
	"testing"
	"time"
)

// The CPU time of a pair of calls is compared with that of the two commands alone. The best of some
// rounds counts, because the machine may be busy.
func TestAPairTakesAtMostTwiceTheCPUOfItsCommands(t *testing.T) {
	const pairs, rounds = 2000, 5
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k")
	best := 100.0
	for range rounds {
		raw := cpu(func() {
			for range pairs {
				s.Call(t, "LOCK.ACQUIRE", "raw", "token", "PX", 30000)
				s.Call(t, "LOCK.RELEASE", "raw", "token")
			}
		})
		ours := cpu(func() {
			for range pairs {
				check(t, acquired(t, lock).Release(background))
			}
		})
		best = min(best, float64(ours)/float64(raw))
		t.Logf("%v for a pair, %v for its commands", ours/pairs, raw/pairs)
	}
	if best > 2 {
		t.Errorf("%.2f times the commands", best)
	}
}

// cpu returns the CPU time of this process for some work.
func cpu(work func()) time.Duration {
	before := used()
	work()
	return used() - before
}

func used() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
