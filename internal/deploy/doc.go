// Package deploy holds Dockerfile, docker-compose.yml and the files of deploy/ to the code: its tests load them as their own
// programs would, and fail where they name what the binary does not have.
package deploy
