package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"bobbin/thread"
)

const ownerKey = "bobbin.owner"

// authorize finds the owner of the request's key, or refuses the request.
func (a *api) authorize(c *gin.Context) {
	scheme, key, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	if key = strings.TrimSpace(key); !strings.EqualFold(scheme, "Bearer") || key == "" {
		a.fail(c, thread.ErrUnauthorized)
		return
	}
	sum := sha256.Sum256([]byte(key))
	id, ok := a.ownerOf(c, key, sum)
	if !ok {
		return
	}
	c.Set(ownerKey, id)
	if wait := a.rates.wait(sum, time.Now(), true); wait > 0 {
		a.slowDown(c, wait, "The key makes too many requests. The header Retry-After says when to try again.")
	}
}

// ownerOf finds the owner of a key, or refuses the request. From an address where too many failed, only keys that have
// worked in this process are looked up, so that guessing is slow, and those who know theirs are not held up.
func (a *api) ownerOf(c *gin.Context, key string, sum [sha256.Size]byte) (id string, ok bool) {
	if local := a.cfg.LocalKey; local != "" && subtle.ConstantTimeCompare([]byte(key), []byte(local)) == 1 {
		return a.cfg.LocalOwner, true
	}
	from := network(c)
	if wait := a.failures.wait(from, time.Now(), false); wait > 0 && !a.keys.known(sum) {
		a.slowDown(c, wait, "Too many keys from this address were wrong. The header Retry-After says when to try again.")
		return "", false
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), a.cfg.Timeout)
	defer cancel()
	id, err := a.keys.owner(ctx, key, sum)
	if err != nil {
		if errors.Is(err, thread.ErrUnauthorized) {
			a.failures.wait(from, time.Now(), true)
		}
		a.fail(c, err)
		return "", false
	}
	return id, true
}

// owner returns whose request it is; empty before authorize.
func owner(c *gin.Context) string { return c.GetString(ownerKey) }

// keys remembers for a short while whom keys belong to. Keys that belong to nobody are not remembered, so a new one works
// at once.
type keys struct {
	lookUp func(context.Context, string) (string, error)
	ttl    time.Duration

	mu   sync.Mutex
	seen map[[sha256.Size]byte]seenKey
}

type seenKey struct {
	owner string
	until time.Time
}

const mostKeys = 10_000 // about 1 MB

func newKeys(lookUp func(context.Context, string) (string, error), ttl time.Duration) *keys {
	return &keys{lookUp: lookUp, ttl: ttl, seen: map[[sha256.Size]byte]seenKey{}}
}

// known reports whether a key has belonged to somebody, perhaps too long ago to be taken without a look.
func (k *keys) known(sum [sha256.Size]byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.seen[sum]
	return ok
}

func (k *keys) owner(ctx context.Context, key string, sum [sha256.Size]byte) (string, error) {
	k.mu.Lock()
	known, ok := k.seen[sum]
	k.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.owner, nil
	}
	id, err := k.lookUp(ctx, key)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		if errors.Is(err, thread.ErrUnauthorized) {
			delete(k.seen, sum) // it was revoked
		}
		return "", err
	}
	if len(k.seen) >= mostKeys {
		clear(k.seen)
	}
	k.seen[sum] = seenKey{id, time.Now().Add(k.ttl)}
	return id, nil
}
