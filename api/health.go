package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// healthz says that the process answers; it asks nothing of others.
func (a *api) healthz(c *gin.Context) {
	body := gin.H{"status": "ok"}
	if a.cfg.Version != "" {
		body["version"] = a.cfg.Version
	}
	c.JSON(http.StatusOK, body)
}

// readyTimeout is how long a check may take. Probes commonly wait one to five seconds.
const readyTimeout = 2 * time.Second

// readyz says whether requests can be served, and what is missing if not.
func (a *api) readyz(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), readyTimeout)
	defer cancel()
	var missing []string
	if err := a.store.Ping(ctx); err != nil {
		a.cfg.Log.WarnContext(ctx, "not ready", "error", err)
		missing = append(missing, "postgres does not answer")
	}
	if a.cfg.Ready != nil {
		if err := a.cfg.Ready(ctx); err != nil {
			missing = append(missing, strings.Split(err.Error(), "\n")...)
		}
	}
	if len(missing) > 0 {
		a.fail(c, &Problem{
			Status: http.StatusServiceUnavailable, Code: CodeUnavailable, Detail: "Not ready: " + strings.Join(missing, "; ") + ".", Missing: missing,
		})
		return
	}
	c.JSON(http.StatusOK, gin.H{"status": "ready"})
}
