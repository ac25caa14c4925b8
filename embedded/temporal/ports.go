package temporal

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// errPortTaken says that the server found a port taken that was free before.
var errPortTaken = errors.New("a port was taken meanwhile")

func (s *Server) choosePorts(c Config) error {
	var err error
	if s.port, err = choosePort(c, "Temporal", c.Port, 0); err != nil {
		return err
	}
	s.uiPort = 0
	if !c.Headless {
		s.uiPort, err = choosePort(c, "Temporal's UI", c.UIPort, s.port)
	}
	return err
}

// choosePort returns the wanted port if it is free, else another, never not.
func choosePort(c Config, what string, wanted, not int) (int, error) {
	if wanted != 0 && wanted != not {
		if l, err := listen(wanted); err == nil {
			l.Close()
			return wanted, nil
		}
	}
	for {
		l, err := listen(0)
		if err != nil {
			return 0, fmt.Errorf("find a port for %s: %w", what, err)
		}
		defer l.Close() // later, so that the next turn gets another
		if port := l.Addr().(*net.TCPAddr).Port; port != not {
			if wanted != 0 {
				c.Log("port %d is taken; %s listens on %d", wanted, what, port)
			}
			return port, nil
		}
	}
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
}
