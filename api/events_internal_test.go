package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

// Whatever a client says it has, it is refused by name, or is a place in the thread.
func FuzzStartOfAStream(f *testing.F) {
	for _, s := range []string{"", "0", "7", "-1", "+3", " 3", "0x1", "thr_1:4", "thr_1:", ":4", "a:b:4", "9223372036854775808", "4\x00", "٣", "1_0"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, header, after string) {
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
		c.Request.Header["Last-Event-Id"] = []string{header}
		values := c.Request.URL.Query()
		values.Set("after", after)
		c.Request.URL.RawQuery = values.Encode()
		q := newQuery(c, "after")
		s := startOf(c, q)
		if len(q.mistakes) > 0 {
			require.Len(t, q.mistakes, 1)
			require.Contains(t, []string{"after", "Last-Event-ID"}, q.mistakes[0].Field)
			return
		}
		require.GreaterOrEqual(t, s.after, int64(0))
		require.True(t, s.threadID == "" || isID(s.threadID))
		at, _ := s.in(&thread.Thread{ID: "thr_1", LastEvent: 5})
		require.GreaterOrEqual(t, at, int64(0))
		require.LessOrEqual(t, at, int64(5))
	})
}
