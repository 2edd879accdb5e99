// SPDX-License-Identifier: Apache-2.0
// Random plans, verified and executed in one process, and the two compared (tests/adversary/). A
// table of truths and verdicts is printed; the exit code is 0 only if no verdict is contradicted.
//
//   adversary [--plans N] [--seed S] [--seconds T] [--jobs J] [--family F] [--write DIR]
//             [--json FILE] [--bare]
//   adversary --family F --seed S --index I [--write DIR]
//     one plan again
//
// Plans are judged in a few worker processes, thousands in each, so that one that hangs or crashes
// is a finding and not the end.
#include <CLI/CLI.hpp>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "adversary/run.h"

namespace shardproof::adversary {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

struct Arguments {
  std::uint64_t plans = 2500, seed = 1;
  std::int64_t index = -1;
  std::string family, write, json;
  double seconds = 0, planSeconds = 20;
  int jobs = 2;
  bool shrink = true, bare = false;
};

struct Task {
  std::string family;
  std::uint64_t index = 0;
};

// The families take turns by their shares, so that a run that is stopped has some of each.
std::vector<Task> tasksOf(const Arguments& a) {
  std::vector<Task> tasks;
  std::map<std::string, std::uint64_t> next;
  std::vector<double> due(families().size(), 0);
  while (tasks.size() < a.plans) {
    std::size_t best = families().size();
    for (std::size_t f = 0; f < families().size(); ++f) {
      if (!a.family.empty() && a.family != families()[f].name) continue;
      if (best == families().size() || due[f] < due[best]) best = f;
    }
    due[best] += 1.0 / families()[best].share;
    tasks.push_back({families()[best].name, next[families()[best].name]++});
  }
  return tasks;
}

// ---- a worker ----

void send(int fd, const Json& record) {
  const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = ::write(fd, line.data() + sent, line.size() - sent);
    if (n <= 0) ::_exit(1);
    sent += static_cast<std::size_t>(n);
  }
}

Json recordOf(const Task& task, const Judged& judged) {
  const Judgement& j = judged.judgement;
  Json record{{"family", task.family},          {"index", task.index},
              {"truth", toString(j.truth)},     {"verdict", toString(j.verdict)},
              {"finding", toString(j.finding)}, {"verify", j.verifySeconds},
              {"execute", j.executeSeconds},    {"edited", !judged.made.edit.empty()},
              {"structural", j.structural},     {"found", j.found}};
  if (j.verdict == Verdict3::kUndecided || j.finding != Finding::kNothing ||
      j.truth == Truth::kNone)
    record["reason"] = j.reason;
  if (j.truth == Truth::kUnknown || j.finding != Finding::kNothing)
    record["truth_reason"] = j.truthReason;
  if (j.finding != Finding::kNothing) {
    record["edit"] = judged.made.edit;
    record["model"] = judged.made.model;
    record["plan"] = judged.made.plan;
  }
  return record;
}

// `again`: the first plan took too long in this process; now its proofs are made in processes that
// can be killed.
[[noreturn]] void work(const std::vector<Task>& tasks, std::size_t from, std::size_t stride,
                       const Arguments& a, int fd, bool again) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit limit{std::uint64_t{6} << 30, std::uint64_t{6} << 30};
  ::setrlimit(RLIMIT_AS, &limit);
  {
    Session session;
    for (std::size_t t = from; t < tasks.size(); t += stride) {
      const Task& task = tasks[t];
      try {
        for (const Judged& judged :
             session.run(task.family, a.seed, task.index, again && t == from, a.bare))
          send(fd, recordOf(task, judged));
      } catch (const std::exception& error) {
        send(fd, {{"family", task.family}, {"index", task.index}, {"failure", error.what()}});
      }
      send(fd, {{"done", t}});
    }
  }
  ::_exit(0);
}

// ---- the parent ----

struct Worker {
  pid_t pid = -1;
  int fd = -1;
  std::size_t next = 0, stride = 1;
  bool again = false;
  std::string buffer = {};
  Clock::time_point since = {};
};

struct Tally {
  std::map<std::string, std::map<std::string, std::map<std::string, std::uint64_t>>> counts,
      unedited;  // family, truth, verdict
  std::map<std::string, std::map<std::string, std::uint64_t>> undecided, unknown;  // family, reason
  std::vector<Json> findings, slow;
  // Of right plans that nobody edited: family, verdict, kind of relation; "any" are all plans, ""
  // those of which nothing was found.
  std::map<std::string, std::map<std::string, std::map<std::string, std::uint64_t>>> found;
  std::map<std::string, double> verify, execute;
  std::uint64_t plans = 0, edited = 0, failures = 0;
  std::string failure;
  double seconds = 0;
};

// Numbers and names are left out, so that reasons can be counted.
std::string kind(const std::string& reason) {
  std::string text;
  bool quoted = false;
  for (const char c : reason) {
    if (c == '\'' || c == '"') {
      quoted = !quoted;
      if (quoted) text += "'...'";
      continue;
    }
    if (quoted) continue;
    if (std::isdigit(static_cast<unsigned char>(c))) {
      if (text.empty() || text.back() != 'N') text += 'N';
      continue;
    }
    text += c;
  }
  for (std::size_t at = text.find("[N, N"); at != std::string::npos; at = text.find("[N, N"))
    text.replace(at, 5, "[N");
  return text.substr(0, 140);
}

class Run {
 public:
  explicit Run(const Arguments& a) : a_(a), tasks_(tasksOf(a)) {}

  Tally run() {
    const auto start = Clock::now();
    const std::size_t jobs = std::max<std::size_t>(
        1, std::min<std::size_t>(static_cast<std::size_t>(a_.jobs), tasks_.size()));
    for (std::size_t w = 0; w < jobs; ++w) workers_.push_back({.next = w, .stride = jobs});
    for (Worker& w : workers_) begin(w);
    const bool terminal = ::isatty(2) == 1;
    auto shown = start;
    for (;;) {
      std::vector<pollfd> polled;
      for (const Worker& w : workers_)
        if (w.fd >= 0) polled.push_back({w.fd, POLLIN, 0});
      if (polled.empty()) break;
      ::poll(polled.data(), polled.size(), 200);
      for (Worker& w : workers_) {
        const auto it = std::find_if(polled.begin(), polled.end(),
                                     [&](const pollfd& p) { return p.fd == w.fd; });
        if (w.fd >= 0 && it != polled.end() && it->revents != 0) receive(w);
        else if (w.fd >= 0 && seconds(w.since) > (w.again ? 4 : 1) * a_.planSeconds)
          lose(w,
               "no verdict within " + std::to_string(static_cast<int>(4 * a_.planSeconds)) + " s");
      }
      if (terminal && seconds(shown) > 1) {
        shown = Clock::now();
        std::cerr << "\r" << tally_.plans << " plans, " << tally_.findings.size() << " findings, "
                  << static_cast<int>(seconds(start)) << " s " << std::flush;
      }
      if (a_.seconds > 0 && seconds(start) > a_.seconds) break;
    }
    if (terminal) std::cerr << "\r";
    for (Worker& w : workers_) end(w);
    tally_.seconds = seconds(start);
    return std::move(tally_);
  }

 private:
  static double seconds(Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  }

  void begin(Worker& w) {
    if (w.next >= tasks_.size()) return;
    int fds[2];
    if (::pipe(fds) != 0) throw std::runtime_error("no pipe");
    std::cout.flush();
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("no process");
    if (pid == 0) {
      ::close(fds[0]);
      for (const Worker& other : workers_)
        if (other.fd >= 0) ::close(other.fd);
      work(tasks_, w.next, w.stride, a_, fds[1], w.again);
    }
    ::close(fds[1]);
    w.pid = pid;
    w.fd = fds[0];
    w.buffer.clear();
    w.since = Clock::now();
  }

  int end(Worker& w) {
    if (w.fd < 0) return 0;
    ::close(w.fd);
    w.fd = -1;
    ::kill(w.pid, SIGKILL);
    int status = 0;
    while (::waitpid(w.pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

  void receive(Worker& w) {
    char bytes[65536];
    const ssize_t n = ::read(w.fd, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) return;
    if (n <= 0) {
      if (w.next >= tasks_.size()) {
        end(w);
        return;
      }
      lose(w, "");
      return;
    }
    w.buffer.append(bytes, static_cast<std::size_t>(n));
    for (std::size_t line = w.buffer.find('\n'); line != std::string::npos;
         line = w.buffer.find('\n')) {
      const Json record = Json::parse(w.buffer.substr(0, line));
      w.buffer.erase(0, line + 1);
      if (record.contains("done")) {
        w.next += w.stride;
        w.again = false;
        w.since = Clock::now();
      } else {
        take(record);
      }
    }
  }

  // The worker died at its current plan, or has to: a finding, and the next plan.
  void lose(Worker& w, std::string why) {
    const Task task = tasks_[w.next];
    const int status = end(w);
    if (!why.empty() && !w.again) {
      w.again = true;
    } else {               // a crash, or too late also with processes that are killed in time
      if (!why.empty()) {  // limits are for each stage; many that are undecided take many of them
        tally_.slow.push_back({{"family", task.family}, {"index", task.index}, {"reason", why}});
        w.next += w.stride;
        w.again = false;
        begin(w);
        return;
      }
      why = WIFSIGNALED(status) ? "ended by signal " + std::to_string(WTERMSIG(status))
                                : "ended with exit code " + std::to_string(WEXITSTATUS(status));
      tally_.findings.push_back({{"family", task.family},
                                 {"index", task.index},
                                 {"finding", "no answer"},
                                 {"reason", why}});
      std::cout << "finding: " << task.family << " " << task.index << ": " << why << std::endl;
      w.next += w.stride;
      w.again = false;
    }
    begin(w);
  }

  void take(const Json& record) {
    if (record.contains("failure")) {
      ++tally_.failures;
      tally_.failure = record.dump();
      return;
    }
    const std::string family = record["family"], truth = record["truth"],
                      verdict = record["verdict"];
    ++tally_.plans;
    tally_.edited += record["edited"].get<bool>() ? 1 : 0;
    ++tally_.counts[family][truth][verdict];
    if (!record["edited"].get<bool>()) ++tally_.unedited[family][truth][verdict];
    if (!record["edited"].get<bool>() && truth == "right") {
      auto& found = tally_.found[family][verdict];
      ++found["any"];
      if (record["found"].empty()) ++found[""];
      for (const std::string name : record["found"]) ++found[name];
    }
    tally_.verify[family] += record["verify"].get<double>();
    tally_.execute[family] += record["execute"].get<double>();
    if (verdict == "undecided")
      ++tally_.undecided[family][(truth == "right"     ? "right: "
                                  : truth == "unknown" ? "unknown: "
                                                       : "wrong: ") +
                                 kind(record["reason"])];
    if (truth == "unknown") ++tally_.unknown[family][kind(record["truth_reason"])];
    if (truth == "input error") ++tally_.unknown[family]["input error: " + kind(record["reason"])];
    if (record["finding"] == "") return;
    tally_.findings.push_back(record);
    std::cout << "finding: " << family << " " << record["index"] << ": "
              << record["finding"].get<std::string>() << ", truth " << truth << " ("
              << record["truth_reason"].get<std::string>() << "), verdict " << verdict << " ("
              << record["reason"].get<std::string>()
              << "); edit: " << record["edit"].get<std::string>() << std::endl;
  }

  Arguments a_;
  std::vector<Task> tasks_;
  std::vector<Worker> workers_;
  Tally tally_;
};

void writeCase(const std::string& directory, const std::string& name, const Case& made,
               const std::string& why) {
  fs::create_directories(directory);
  std::ofstream(fs::path(directory) / (name + ".model.json")) << made.model.dump(1) << "\n";
  Json plan = made.plan;
  plan["model"] = name + ".model.json";
  std::ofstream(fs::path(directory) / (name + ".plan.json")) << plan.dump(1) << "\n";
  if (!why.empty()) std::ofstream(fs::path(directory) / (name + ".txt")) << why << "\n";
}

Judgement print(const Case& made, std::uint64_t seed, bool bare = false) {
  JudgeOptions options;
  options.bare = bare;
  options.seed = seed;
  const Judgement j = judge(made, options);
  std::cout << "truth:   " << toString(j.truth)
            << (j.truthReason.empty() ? "" : ": " + j.truthReason)
            << "\nverdict: " << toString(j.verdict) << (j.reason.empty() ? "" : ": " + j.reason)
            << "\n";
  if (j.finding != Finding::kNothing) std::cout << "finding: " << toString(j.finding) << "\n";
  return j;
}

int one(const Arguments& a) {
  Session session;
  int code = 0, number = 0;
  for (const Judged& judged :
       session.run(a.family, a.seed, static_cast<std::uint64_t>(a.index), false, a.bare)) {
    const std::string name = a.family + "_" + std::to_string(a.seed) + "_" +
                             std::to_string(a.index) +
                             (number > 0 ? "_" + std::to_string(number) : "");
    ++number;
    std::cout << name << (judged.made.edit.empty() ? "" : ": " + judged.made.edit) << "\n";
    const std::uint64_t seed = a.seed + static_cast<std::uint64_t>(a.index) * 7919;
    const Judgement j = print(judged.made, seed, a.bare);
    if (!a.write.empty()) writeCase(a.write, name, judged.made, "");
    if (judged.judgement.finding == Finding::kNothing) continue;
    code = 1;
    if (!a.shrink || a.bare || j.finding == Finding::kNothing) continue;
    const Case small = shrinkFinding(judged.made, j, seed, 60);
    std::cout << "made small:\n";
    print(small, seed);
    if (!a.write.empty()) writeCase(a.write, name + "_small", small, judged.made.edit);
    else std::cout << small.model.dump() << "\n" << small.plan.dump() << "\n";
  }
  return code;
}

Json jsonOf(const Arguments& a, const Tally& t) {
  Json findings = Json::array();
  for (const Json& f : t.findings) findings.push_back(f);
  return {{"format", "shardproof-adversary"},
          {"version", 1},
          {"seed", a.seed},
          {"plans", t.plans},
          {"edited", t.edited},
          {"seconds", t.seconds},
          {"counts", t.counts},
          {"unedited", t.unedited},
          {"undecided", t.undecided},
          {"unknown", t.unknown},
          {"found", t.found},
          {"failures", t.failures},
          {"slow", t.slow},
          {"verify_seconds", t.verify},
          {"execute_seconds", t.execute},
          {"findings", findings}};
}

void printTable(const Tally& t) {
  for (const auto* counts : {&t.unedited, &t.counts}) {
    std::printf("\n%-14s %-24s %10s %14s %10s %8s\n", counts == &t.counts ? "all" : "not edited",
                "truth", "equivalent", "not equivalent", "undecided", "none");
    for (const auto& [family, truths] : *counts)
      for (const auto& [truth, verdicts] : truths) {
        const auto count = [&verdicts = verdicts](const char* v) {
          return verdicts.contains(v) ? static_cast<unsigned long>(verdicts.at(v)) : 0UL;
        };
        std::printf("%-14s %-24s %10lu %14lu %10lu %8lu\n", family.c_str(), truth.c_str(),
                    count("equivalent"), count("not equivalent"), count("undecided"),
                    count("none"));
      }
  }
  std::printf("\n");
  for (const auto* list : {&t.undecided, &t.unknown}) {
    std::printf(list == &t.undecided ? "Undecided:\n" : "No truth:\n");
    for (const auto& [family, reasons] : *list) {
      std::vector<std::pair<std::uint64_t, std::string>> sorted;
      for (const auto& [reason, n] : reasons) sorted.emplace_back(n, reason);
      std::sort(sorted.rbegin(), sorted.rend());
      for (std::size_t i = 0; i < std::min<std::size_t>(sorted.size(), 8); ++i)
        std::printf("  %-14s %6lu  %s\n", family.c_str(),
                    static_cast<unsigned long>(sorted[i].first), sorted[i].second.c_str());
    }
  }
  std::printf("\n%lu plans in %.1f s, %lu of them edited; %zu findings",
              static_cast<unsigned long>(t.plans), t.seconds, static_cast<unsigned long>(t.edited),
              t.findings.size());
  if (!t.slow.empty())
    std::printf("; %zu without a verdict in time, the first: %s", t.slow.size(),
                t.slow.front().dump().c_str());
  if (t.failures > 0)
    std::printf("; %lu plans could not be made, the last: %s",
                static_cast<unsigned long>(t.failures), t.failure.c_str());
  std::printf("\n");
}

int main(int argc, char** argv) {
  CLI::App app("random plans against the plain executor");
  Arguments a;
  if (const char* plans = std::getenv("SHARDPROOF_ADVERSARY_PLANS")) a.plans = std::stoull(plans);
  app.add_option("--plans", a.plans, "how many (SHARDPROOF_ADVERSARY_PLANS)");
  app.add_option("--seed", a.seed, "of all random choices");
  app.add_option("--family", a.family, "this one only");
  app.add_option("--index", a.index, "this plan only");
  app.add_option("--seconds", a.seconds, "stop after so many");
  app.add_option("--plan-seconds", a.planSeconds,
                 "a plan that takes longer is proved in processes that are killed; four times as "
                 "long is counted as slow");
  app.add_option("--jobs", a.jobs, "worker processes");
  app.add_option("--write", a.write, "write findings, made small, to this directory");
  app.add_option("--json", a.json, "write the table and the findings to this file");
  app.add_flag("--bare", a.bare,
               "plans have lineage of inputs and outputs only, and the rest is found");
  app.add_flag("!--no-shrink", a.shrink, "leave findings as they are");
  CLI11_PARSE(app, argc, argv);
  if (a.index >= 0) return one(a);
  const Tally tally = Run(a).run();
  printTable(tally);
  if (!a.json.empty()) std::ofstream(a.json) << jsonOf(a, tally).dump(1) << "\n";
  return tally.findings.empty() && tally.failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shardproof::adversary

int main(int argc, char** argv) {
  try {
    return shardproof::adversary::main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
