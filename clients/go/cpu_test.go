//go:build !race

package redislock_test

import (
	"syscall"
	"testing"
)

// The CPU time of a pair of calls is compared with that of the two commands alone. The best of some
// rounds counts, because the machine may be busy.
func TestAPairTakesAtMostTwiceTheCPUOfItsCommands(t *testing.T) {
	s := serve(t)
	lock := lockOf(t, locksOf(t, s.Client), "k")
	best := 100.0
	for range 5 {
		raw := cpuOfPairs(func() {
			s.Call(t, "LOCK.ACQUIRE", "raw", "token", "PX", 30000)
			s.Call(t, "LOCK.RELEASE", "raw", "token")
		})
		ours := cpuOfPairs(func() { check(t, acquired(t, lock).Release(background)) })
		best = min(best, float64(ours)/float64(raw))
	}
	if best > 2 {
		t.Errorf("%.2f times the commands", best)
	}
}

// cpuOfPairs returns the CPU time of this process for some pairs.
func cpuOfPairs(pair func()) int64 {
	before := used()
	for range 2000 {
		pair()
	}
	return used() - before
}

func used() int64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return usage.Utime.Nano() + usage.Stime.Nano()
}
