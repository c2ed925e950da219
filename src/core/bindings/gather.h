// The records of an index, by their numbers, as Python has them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "../gather.h"
#include "decoder.h"

namespace covey {

class PyGather {
 public:
  // From tuples (rows, count, stride, shard, length, offset, label or -1, shards).
  explicit PyGather(nb::list tables);
  PyGather(const PyGather&) = delete;

  // From tuples (number, path, descriptor, size, fingerprint or None), or (number, None, -1, 0,
  // None) to unmap a shard.
  void set_shards(nb::list given, bool keep_open, bool scattered);
  std::vector<std::size_t> missing(ArrayArg<std::int64_t> ids) const;
  nb::list decode(const PyDecoder& decoder, ArrayArg<std::int64_t> ids, int check,
                  std::ptrdiff_t label, nb::list dense) const;
  nb::list slice(ArrayArg<std::int64_t> ids, bool verify) const;

  const RowTables& tables() const noexcept { return tables_; }

  // The shards that are mapped now; they stay so as long as somebody holds this.
  std::shared_ptr<const Mappings> shards() const;

 private:
  Fault locate(const ArrayArg<std::int64_t>& ids, const Mappings& shards, Located& located) const;
  RowTables parse(nb::list given);

  std::vector<View> views_;
  RowTables tables_;
  // It never changes: whoever reads from it holds it, and another takes its place meanwhile.
  std::shared_ptr<const Mappings> shards_;
  mutable std::mutex lock_;  // of the pointer; some who read have no GIL
};

}  // namespace covey
