// SPDX-License-Identifier: Apache-2.0
#include "commands/graphviz.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

extern char** environ;

namespace shardproof {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

// Files without a name, so that neither side waits for the other and nothing is left behind.
File unnamed() {
  File file(std::tmpfile());
  if (!file) throw std::runtime_error(std::string("no temporary file: ") + std::strerror(errno));
  return file;
}

struct Actions {
  Actions() { posix_spawn_file_actions_init(&all); }
  ~Actions() { posix_spawn_file_actions_destroy(&all); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  posix_spawn_file_actions_t all;
};

}  // namespace

std::string svgOf(const std::string& graph) {
  const File in = unnamed(), out = unnamed();
  if (std::fwrite(graph.data(), 1, graph.size(), in.get()) != graph.size() ||
      std::fflush(in.get()) != 0)
    throw std::runtime_error(std::string("a temporary file: ") + std::strerror(errno));
  std::rewind(in.get());
  Actions actions;
  posix_spawn_file_actions_adddup2(&actions.all, fileno(in.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions.all, fileno(out.get()), STDOUT_FILENO);
  std::string program = "dot", format = "-Tsvg";
  char* arguments[] = {program.data(), format.data(), nullptr};
  pid_t child = 0;
  if (const int error =
          posix_spawnp(&child, program.c_str(), &actions.all, nullptr, arguments, environ);
      error != 0) {
    throw std::runtime_error(
        error == ENOENT ? "svg is drawn by the program dot, which was not found: install graphviz, "
                          "or write --format dot and draw it elsewhere"
                        : std::string("dot cannot be run: ") + std::strerror(error));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error(std::string("dot: ") + std::strerror(errno));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error("dot of graphviz failed");
  std::rewind(out.get());
  std::string drawing;
  char buffer[1 << 14];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, out.get()))
    drawing.append(buffer, n);
  return drawing;
}

}  // namespace shardproof
