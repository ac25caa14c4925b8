package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
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
	ctx, cancel := context.WithTimeout(c.Request.Context(), a.cfg.Timeout)
	defer cancel()
	id, err := a.ownerOf(ctx, key)
	if err != nil {
		a.fail(c, err)
		return
	}
	c.Set(ownerKey, id)
}

func (a *api) ownerOf(ctx context.Context, key string) (string, error) {
	if local := a.cfg.LocalKey; local != "" && subtle.ConstantTimeCompare([]byte(key), []byte(local)) == 1 {
		return a.cfg.LocalOwner, nil
	}
	return a.keys.owner(ctx, key)
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

func (k *keys) owner(ctx context.Context, key string) (string, error) {
	sum := sha256.Sum256([]byte(key))
	k.mu.Lock()
	known, ok := k.seen[sum]
	k.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.owner, nil
	}
	id, err := k.lookUp(ctx, key)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.seen) >= mostKeys {
		clear(k.seen)
	}
	k.seen[sum] = seenKey{id, time.Now().Add(k.ttl)}
	return id, nil
}
