"""Part files into a Milvus collection by its bulk import: for millions of rows, none of which passes through a worker.

with BulkImport(StoreConfig("http://milvus:19530")) as milvus:
    done = import_parts([Path("host1"), Path("host2")], "images", milvus, open_staging("s3://milvus/staging"))

``clipfleet.store`` is imported by whoever calls; this package asks it alone.
"""

from __future__ import annotations

from clipfleet.index.bulk.importing import Imported, Watch, import_parts
from clipfleet.index.bulk.staging import Staging, StagingError, open_staging

__all__ = ["Imported", "Staging", "StagingError", "Watch", "import_parts", "open_staging"]
