package storetest

import (
	"net/url"
	"strings"
)

// withDatabase names another database in a connection string, in either of its forms.
func withDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " dbname=" + name, nil // of two values the later counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Del("dbname")
	u.Path, u.RawQuery = "/"+name, q.Encode()
	return u.String(), nil
}
