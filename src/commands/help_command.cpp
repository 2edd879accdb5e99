// SPDX-License-Identifier: Apache-2.0
#include "commands/help_command.h"

#include <memory>
#include <string>
#include <vector>

#include "commands/manual.h"
#include "commands/streams.h"
#include "commands/usage.h"
#include "report/exit_codes.h"

namespace shardproof {

void addHelpCommand(CLI::App& app, std::function<int()>& run) {
  const auto words = std::make_shared<std::vector<std::string>>();
  const auto manual = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("help", "Print a command's options, as --help does");
  command->add_option("COMMAND", *words, "Which command")->type_name("");
  command->add_flag("--man", *manual, "The manual page, for man -l");
  command->callback([&app, words, manual, &run] {
    run = [&app, words, manual]() -> int {
      if (*manual) {
        writeStandardOutput(manualPage(app));
        return 0;
      }
      const CLI::App* about = &app;
      if (const std::string unknown = unknownWord(app, *words); !unknown.empty()) {
        writeDiagnostic(unknown);
        return kExitUsage;
      }
      for (const std::string& word : *words) {
        if (word.starts_with("-")) continue;
        about = about->get_subcommand(word);
      }
      writeStandardOutput(about == &app ? app.help() : about->help("shardproof"));
      return 0;
    };
  });
}

}  // namespace shardproof
