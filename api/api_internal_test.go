package api

import (
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"
)

func TestAnAnswerThatCannotBeEncodedIsAFailureAndNotAnEmptySuccess(t *testing.T) {
	t.Parallel()
	a := &api{cfg: Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}}
	w := httptest.NewRecorder()
	c, _ := gin.CreateTestContext(w)
	c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
	a.say(c, http.StatusOK, math.NaN())
	require.Equal(t, http.StatusInternalServerError, w.Code)
	var p Problem
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
	require.Equal(t, CodeInternal, p.Code)
}
