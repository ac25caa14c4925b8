package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"bobbin/thread"
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
	missing, notes := a.schema(ctx)
	if a.cfg.Ready != nil {
		if err := a.cfg.Ready(ctx); err != nil {
			missing = append(missing, strings.Split(err.Error(), "\n")...)
		}
	}
	select {
	case <-a.cfg.Done:
		missing = append(missing, "the process has been told to end")
	default:
	}
	if len(missing) > 0 {
		a.fail(c, &Problem{
			Status: http.StatusServiceUnavailable, Code: CodeUnavailable, Detail: "Not ready: " + strings.Join(missing, "; ") + ".", Missing: missing,
		})
		return
	}
	body := gin.H{"status": "ready"}
	if len(notes) > 0 {
		body["notes"] = notes
	}
	c.JSON(http.StatusOK, body)
}

// schema asks Postgres for the version of its schema. One that is newer than this binary is no hindrance: in a rolling deploy the
// old version serves on after the migration.
func (a *api) schema(ctx context.Context) (missing, notes []string) {
	have, want, err := a.store.Schema(ctx)
	switch {
	case errors.Is(err, thread.ErrUnavailable), ctx.Err() != nil:
		a.cfg.Log.WarnContext(ctx, "not ready", "error", err)
		missing = append(missing, "postgres does not answer")
	case err != nil:
		a.cfg.Log.WarnContext(ctx, "not ready", "error", err)
		missing = append(missing, "the database has no schema: run bobbin migrate")
	case have < want:
		missing = append(missing, fmt.Sprintf("the database's schema is at %d and this version needs %d: run bobbin migrate", have, want))
	case have > want:
		notes = append(notes, fmt.Sprintf("the database's schema is at %d, newer than this version, which knows %d", have, want))
	}
	return missing, notes
}
