//! The Flight server: prebuilt record batches over gRPC, everything else refused.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use arrow_array::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

/// How Flight is set up, at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// As the crate comes: HTTP/2's default windows.
    AsItComes,
    /// With windows that hold a stream of batches.
    Tuned,
}

/// Batches of one size after another; the ticket says which.
pub struct Prebuilt {
    /// Rows a batch, and the batches.
    pub tables: Vec<(usize, Vec<RecordBatch>)>,
}

/// Serves on loopback until the process ends; `ready` hears the address.
pub fn serve(prebuilt: Prebuilt, tuning: Tuning, ready: impl FnOnce(SocketAddr) -> Result<()>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port of the loopback is free")?;
        ready(listener.local_addr()?)?;
        let mut server = tonic::transport::Server::builder();
        if tuning == Tuning::Tuned {
            server = server
                .initial_stream_window_size(super::WINDOW_BYTES)
                .initial_connection_window_size(super::WINDOW_BYTES)
                .tcp_nodelay(true);
        }
        server
            .add_service(FlightServiceServer::new(prebuilt))
            .serve_with_incoming(TcpListenerStream::new(listener))
            .await
            .context("the Flight server failed")
    })
}

fn refused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("this server only serves do_get"))
}

#[tonic::async_trait]
impl FlightService for Prebuilt {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let rows = std::str::from_utf8(&request.get_ref().ticket).ok().and_then(|text| text.parse::<usize>().ok());
        let table = self.tables.iter().find(|(size, _)| Some(*size) == rows);
        let Some((_, batches)) = table else { return Err(Status::not_found("no batches of that many rows")) };
        // Cloning a batch shares its buffers.
        let batches = batches.clone().into_iter().map(Ok::<_, FlightError>);
        let encoded = FlightDataEncoderBuilder::new().build(stream::iter(batches));
        Ok(Response::new(encoded.map_err(Status::from).boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        refused()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        refused()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        refused()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        refused()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        refused()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        refused()
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        refused()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        refused()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        refused()
    }
}
