// Random access to the records of an index, as Python has it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../gather.h"
#include "decoder.h"

namespace covey {

// The fields of an index row.
struct RowFields {
  RowTable table;                           // byte offsets of the fields; no rows
  std::optional<std::size_t> inner_offset;  // byte offset of `inner_offset`, if the rows have it
};

// Reads the byte offsets from a numpy dtype, and checks the sizes.
RowFields row_fields(nb::handle dtype);

// The rows of one split.
struct PyRowTable {
  View view;
  RowTable table;
};

// A file to map.
struct ShardFile {
  std::size_t shard;  // index among all shards
  std::string path;
  std::size_t size;
  int descriptor;  // of the open file; negative to open it
  std::optional<std::uint32_t> fingerprint;
};

class PyGather {
 public:
  explicit PyGather(nb::list tables);
  PyGather(const PyGather&) = delete;

  void map(const std::vector<ShardFile>& files, bool scattered, std::size_t limit);
  std::vector<std::size_t> missing(ArrayArg<std::int64_t> ids) const;
  nb::list decode(const PyDecoder& decoder, ArrayArg<std::int64_t> ids, int check,
                  std::ptrdiff_t label, nb::list dense) const;
  nb::list slice(ArrayArg<std::int64_t> ids, bool verify) const;

  const RowTables& tables() const noexcept { return tables_; }

  // The shards that are mapped now; they stay mapped as long as the result is alive.
  std::shared_ptr<const Mappings> shards() const;

 private:
  Fault locate(const ArrayArg<std::int64_t>& ids, const Mappings& shards, Located& located) const;

  nb::tuple held_;  // keeps the memory of the rows alive
  RowTables tables_;
  // Immutable: readers hold a reference, and map() replaces the vector.
  std::shared_ptr<const Mappings> shards_;
  mutable std::mutex lock_;  // guards the pointer; prefetch threads read it without the GIL
};

}  // namespace covey
