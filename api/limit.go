package api

import (
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/time/rate"
)

// A limiter has a token bucket for each key. Buckets that are full again are dropped, as a new one is no different.
type limiter[K comparable] struct {
	every rate.Limit
	burst int
	most  int

	mu      sync.Mutex
	buckets map[K]*rate.Limiter
	rest    *rate.Limiter // shared by all that find no room
	swept   time.Time
}

const (
	mostBuckets = 10_000 // some 2 MB
	sweepEvery  = time.Minute
)

// newLimiter returns a limiter that lets so many through in a second, and burst at once. 0: all.
func newLimiter[K comparable](perSecond float64, burst int) *limiter[K] {
	l := &limiter[K]{every: rate.Limit(perSecond), burst: max(burst, 1), most: mostBuckets, buckets: map[K]*rate.Limiter{}}
	if perSecond <= 0 {
		l.every = rate.Inf
	}
	l.rest = rate.NewLimiter(l.every, l.burst)
	return l
}

// wait returns how long k must wait before it has a token; 0: it has one. take says whether that is used up.
func (l *limiter[K]) wait(k K, now time.Time, take bool) time.Duration {
	if l.every == rate.Inf {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(k, now)
	tokens := b.TokensAt(now)
	if tokens < 1 {
		return time.Duration(math.Ceil((1 - tokens) / float64(l.every) * float64(time.Second)))
	}
	if take {
		b.AllowN(now, 1)
	}
	return 0
}

func (l *limiter[K]) bucket(k K, now time.Time) *rate.Limiter {
	if b := l.buckets[k]; b != nil {
		return b
	}
	if len(l.buckets) >= l.most || now.Sub(l.swept) >= sweepEvery {
		l.swept = now
		for k, b := range l.buckets {
			if b.TokensAt(now) >= float64(l.burst) {
				delete(l.buckets, k)
			}
		}
	}
	if len(l.buckets) >= l.most {
		return l.rest
	}
	b := rate.NewLimiter(l.every, l.burst)
	l.buckets[k] = b
	return b
}

// slowDown refuses a request that came too soon.
func (a *api) slowDown(c *gin.Context, wait time.Duration, detail string) {
	c.Header("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	a.fail(c, &Problem{Status: http.StatusTooManyRequests, Code: CodeRateLimited, Detail: detail})
}

// network returns what a limit by address counts: an IPv4 address, or the /64 that one IPv6 host has to itself.
func network(c *gin.Context) netip.Prefix {
	addr, err := netip.ParseAddr(c.ClientIP())
	if err != nil {
		return netip.Prefix{}
	}
	bits := 64
	if addr = addr.Unmap().WithZone(""); addr.Is4() {
		bits = 32
	}
	p, _ := addr.Prefix(bits) // in range
	return p
}
